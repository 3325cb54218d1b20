package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
)

// Key is a row of the reference: what there is to say of a key.
type Key struct {
	Key      string   `json:"key"`
	Type     string   `json:"type"`
	Unit     string   `json:"unit,omitempty"`
	Required bool     `json:"required,omitempty"` // a file without it is refused
	Default  string   `json:"default,omitempty"`
	Range    string   `json:"range,omitempty"`
	Choices  []string `json:"choices,omitempty"`
	Secret   string   `json:"secret,omitempty"` // value: it is one; file: it names a file that holds one
	Flag     string   `json:"flag,omitempty"`
	Variable string   `json:"variable,omitempty"`
	Doc      string   `json:"doc"`
}

// ReferenceOf returns the keys of a configuration in order, with those that every role
// has at the end. of must be empty, and is completed. No tag says which keys are
// required: they are those that Validate reports for an empty configuration. Most defaults
// are the values that Complete gives it.
func (files Files) ReferenceOf(of Configuration) (keys []Key) {
	required := map[string]bool{}
	for _, err := range Flat(of.Validate()) {
		if e, ok := errors.AsType[*millrace.Error](err); ok {
			required[e.Field] = true
		}
	}
	of.Complete()
	settings := of.Settings()
	for _, l := range LeavesOf(reflect.ValueOf(of).Elem(), "", true) {
		tag := l.Field.Tag.Get
		if tag("doc") == "-" {
			continue
		}
		k := Key{Key: l.Path, Type: l.kind(), Unit: tag("unit"), Required: required[l.Path], Default: tag("default"), Choices: l.Choices(), Secret: tag("secret"), Doc: tag("doc")}
		if least, most, ok := strings.Cut(tag("range"), ".."); ok {
			k.Range = inWords(least, most)
		}
		if v := reflect.Indirect(l.Value); k.Default == "" && v.IsValid() && (!v.IsZero() || l.Value.Kind() == reflect.Pointer) {
			k.Default = l.Text()
		}
		if l.kind() == trueOrFalse {
			k.Default = cmp.Or(k.Default, "false")
		}
		if l.IsSecret() {
			k.Secret = "value"
		}
		if s := l.set(settings); s != nil {
			if k.Variable = s.Env; s.Flag != "" {
				k.Flag = "--" + s.Flag
			}
		}
		keys = append(keys, k)
	}
	ofAll := files.OfEveryRole()
	rank := func(k Key) int {
		if ofAll[k.Key] {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(keys, func(a, b Key) int { return rank(a) - rank(b) })
	return keys
}

// OfEveryRole returns the set of the keys that every role has.
func (files Files) OfEveryRole() map[string]bool {
	all := map[string]bool{}
	for _, l := range LeavesOf(reflect.ValueOf(files.EveryRole).Elem(), "", true) {
		all[l.Path] = true
	}
	return all
}

const trueOrFalse = "true or false"

// kind says in words of what type a value is.
func (l Leaf) kind() string {
	t := l.Value.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	form := l.Field.Tag.Get("form")
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "time such as 90s"
	case t.Kind() == reflect.Bool:
		return trueOrFalse
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return "integer"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.Slice && form != "":
		return "list of " + form
	case t.Kind() == reflect.Slice:
		return "list of texts"
	case form != "":
		return form
	}
	return "text"
}

func configReferenceCommand(files Files) *cobra.Command {
	var output display.Form
	c := &cobra.Command{
		Use:   "reference [ROLE]",
		Short: "Print every key of configuration files",
		Long: `Prints every key of a role's configuration file, or of the file of contexts: its
type, its default, its range, the flag and the variable of the environment that
go before it, and what it is for. Without a role it prints those of all, which is
docs/configuration.md.`,
		Example: `  millrace config reference broker
  millrace config reference contexts -o json`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: files.Names(),
		RunE: func(c *cobra.Command, args []string) error {
			names := files.Names()
			if len(args) > 0 {
				names = args
			}
			all := map[string][]Key{}
			for _, name := range names {
				of, err := files.Named(name)
				if err != nil {
					return err
				}
				all[name] = files.ReferenceOf(of)
			}
			return output.Write(c.OutOrStdout(), all, func(w io.Writer) error {
				_, err := io.WriteString(w, files.referencePage(names, all))
				return err
			})
		},
	}
	display.Flag(c, &output, "markdown", "json")
	return c
}

const referenceTop = `<!-- Written by: make config-page. -->
# Configuration

Each role reads one file in YAML (` + "`--config FILE`" + `), and the command line reads a file of contexts. These are their keys, as ` + "`millrace config reference`" + ` prints them. ` + "`millrace config check FILE`" + ` reports every fault of a file at once, as its role does at its start. ` + "`millrace demo`" + ` and ` + "`millrace dev`" + ` have flags alone.

- A dot leads to what stands within: ` + "`tls.ca`" + ` is ` + "`tls: {ca: ca.pem}`" + `. Names in capitals are yours.
- A flag goes before the variable of the environment, that before the file, and that before the default. A key without a default may be left out, unless it is required.
- A time has a unit: ` + "`90s`, `15m`, `24h`" + `.
- A **secret** is never shown, in no log and by no command. It stands best in a file, which is read again when it changes, or in the environment. No flag takes one, since the list of processes shows flags to everybody.
- A key that is not known, stands twice or is of another type is refused, and so are anchors, aliases and a second document.
`

// referencePage returns the keys of the named kinds of files in Markdown. The keys that
// every role has stand once, in a table of their own.
func (files Files) referencePage(names []string, all map[string][]Key) string {
	var b strings.Builder
	b.WriteString(referenceTop)
	ofAll := files.OfEveryRole()
	var shared []Key
	requiredBy := map[string][]string{}
	for _, name := range names {
		own := all[name]
		if name != "contexts" {
			i := slices.IndexFunc(own, func(k Key) bool { return ofAll[k.Key] })
			own, shared = own[:i], slices.Clone(own[i:])
		}
		referenceTable(&b, name, own)
		for _, k := range all[name] {
			if k.Required {
				requiredBy[k.Key] = append(requiredBy[k.Key], name)
			}
		}
	}
	for i := range shared {
		if by := requiredBy[shared[i].Key]; len(names) > 1 && by != nil {
			shared[i].Required, shared[i].Default = false, "required by "+strings.Join(by, ", ")
		}
	}
	if shared != nil {
		referenceTable(&b, "every role", shared)
	}
	return b.String()
}

func referenceTable(b *strings.Builder, title string, keys []Key) {
	fmt.Fprintf(b, "\n## %s\n\n| key | type | default | flag, variable | |\n|---|---|---|---|---|\n", strings.ToUpper(title[:1])+title[1:])
	for _, k := range keys {
		of := []string{k.Type}
		if k.Choices != nil {
			of = []string{strings.Join(k.Choices, ", ")}
			if strings.HasPrefix(k.Type, "list") {
				of[0] = "list of " + of[0]
			}
		}
		for _, more := range []string{k.Unit, k.Range} {
			if more != "" {
				of = append(of, more)
			}
		}
		by := strings.TrimPrefix(strings.ReplaceAll(" `"+k.Flag+"` `"+k.Variable+"`", " ``", ""), " ")
		missing := k.Default
		if k.Required {
			missing = "required"
		}
		doc := k.Doc
		switch k.Secret {
		case "value":
			doc += ". **Secret**"
		case "file":
			doc += ". The file is **secret**"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", k.Key, strings.Join(of, "; "), missing, by, doc)
	}
}
