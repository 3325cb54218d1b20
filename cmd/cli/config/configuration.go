// Package config reads configuration files into structs, whose fields say what the keys
// are. It lets flags and the environment override what a file says, reports every fault at
// once, and writes the reference of all keys. It knows no role.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/hint"
)

// Configuration is a file that the program reads: of a role, or of contexts. It is a
// pointer to a struct, whose fields are the keys. Tags of a field say what there is to
// say of its key. The reference and the check read them, so that there is no second list
// of the same keys. The tags are:
//
//	yaml      the key
//	doc       what it is for; every field has it. "-": a key of an earlier release, which is refused
//	default   what is used if it is left out, in words; only if Complete gives no value
//	range     LEAST..MOST of a number or a time; either may be left out
//	choices   the texts that it may be, or that may be in its list, with ", " between them
//	form      how a text is written: host:port is checked, others only stand in the reference
//	unit      of a number
//	name      what the reference writes for the keys of a mapping
//	secret    file: its value names a file that nobody else may read
type Configuration interface {
	// Settings returns the keys that flags and the environment may give, too.
	Settings() []Setting
	// Validate reports every fault that cannot be seen from the tags of one field, as
	// joined errors. It reads files, and connects to nothing.
	Validate() error
	// Complete gives fields that were left out the values that are used instead.
	Complete()
}

// Files are all kinds of configuration files.
type Files struct {
	All       []File
	EveryRole any // a pointer to a struct, whose keys every role has
}

// File is one kind of configuration file.
type File struct {
	Of  string               // a role, or "contexts"
	New func() Configuration // returns an empty one
}

// Names returns what kinds of files there are, in order.
func (files Files) Names() (names []string) {
	for _, c := range files.All {
		names = append(names, c.Of)
	}
	return names
}

// Named returns an empty configuration of a kind.
func (files Files) Named(name string) (Configuration, error) {
	for _, c := range files.All {
		if c.Of == name {
			return c.New(), nil
		}
	}
	wayOut := hint.Nearest(name, files.Names())
	if name == "dev" || name == "demo" {
		wayOut = "it has no file: millrace help " + name + " shows its flags"
	}
	return nil, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "role", Detail: fmt.Sprintf("%.40q has no configuration", name), WayOut: wayOut}
}

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	From   string `json:"from,omitempty"` // the flag or variable that gives the value; "": the file does, at Line
	Field  string `json:"field,omitempty"`
	Detail string `json:"detail"`
	WayOut string `json:"way_out,omitempty"`
}

// String renders a fault in a line: where it is, what is wrong, and what to write.
func (f Fault) String() string {
	at := f.From
	if at == "" {
		at = fmt.Sprintf("line %d, column %d", f.Line, f.Column)
	}
	return at + ": " + f.err().Error()
}

func (f Fault) err() *millrace.Error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: f.Field, Detail: f.Detail, WayOut: f.WayOut}
}

// Invalid is the error of a configuration that cannot be used, with all its faults.
type Invalid struct {
	file   string
	faults []Fault
}

// Error renders the faults, one a line.
func (e *Invalid) Error() string {
	lines := []string{e.file + ": " + display.Faults(len(e.faults))}
	for _, f := range e.faults {
		lines = append(lines, "  "+f.String())
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the faults, each as a [millrace.Error].
func (e *Invalid) Unwrap() (errs []error) {
	for _, f := range e.faults {
		errs = append(errs, f.err())
	}
	return errs
}

// Given is a value that is not left out, and where it stands.
type Given struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"` // a line of the file, a flag or a variable
}

// reading is a configuration while it is read.
type reading struct {
	document *document.Node
	from     map[string]string // the flag or variable that gives a value, by the path of its key
	faults   []Fault
}

// Read reads the file into cfg. Roles and config check both use it. It decodes the file,
// lets the environment and flags override it, checks it, and gives what was left out its
// defaults. With nil flags neither flags nor the environment count. It returns the values
// that were given. If the configuration is wrong, the error is an [Invalid] with every
// fault.
func Read(file string, cfg Configuration, flags *pflag.FlagSet) ([]Given, error) {
	text, err := document.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &reading{from: map[string]string{}}
	if r.document, err = document.Parse(text); err != nil {
		r.add(err)
		return nil, &Invalid{file, r.faults}
	}
	r.add(r.document.Decode(cfg))
	settings := cfg.Settings()
	if flags != nil {
		r.add(Override(flags, settings))
	}
	all := LeavesOf(reflect.ValueOf(cfg).Elem(), "", false)
	var gave []Given
	for _, l := range all {
		if s := l.set(settings); s != nil && s.from != "" {
			r.from[l.Path] = s.from
		}
		r.add(errors.Join(l.Validate()...))
		if line, _ := r.document.Find(l.Path); !l.Value.IsZero() {
			gave = append(gave, Given{l.Path, l.Text(), cmp.Or(r.from[l.Path], fmt.Sprintf("line %d", line))})
		}
	}
	r.addNew(cfg.Validate())
	if len(r.faults) > 0 {
		slices.SortStableFunc(r.faults, func(a, b Fault) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
		return gave, &Invalid{file, r.faults}
	}
	cfg.Complete()
	return gave, nil
}

// addNew adds the faults of fields that have none yet. If an address is malformed, the
// check of the whole connection reports it once more, under another field; addNew leaves
// that out.
func (r *reading) addNew(err error) {
	told := map[string]bool{}
	addresses := false
	for _, f := range r.faults {
		told[f.Field] = true
		addresses = addresses || strings.HasSuffix(f.Detail, "is no host:port")
	}
	for _, err := range Flat(err) {
		e, ok := errors.AsType[*millrace.Error](err)
		if ok && (told[e.Field] || addresses && strings.Contains(e.Detail, "is no host:port")) {
			continue
		}
		r.add(err)
	}
}

// add adds the faults in err with their places, each once; nil adds none.
func (r *reading) add(err error) {
	for _, err := range Flat(err) {
		var of []Fault
		if e, ok := errors.AsType[*document.Error](err); ok {
			for _, f := range e.Faults {
				of = append(of, Fault{f.Line, f.Col, "", f.Field, f.Detail, f.WayOut})
			}
		} else if e, ok := errors.AsType[*millrace.Error](err); ok {
			f := Fault{From: r.from[e.Field], Field: e.Field, Detail: e.Detail, WayOut: e.WayOut}
			if strings.HasPrefix(f.Field, "MILLRACE_") {
				f.From, f.Field = f.Field, ""
			}
			if f.From == "" {
				f.Line, f.Column = r.document.Find(f.Field)
			}
			of = []Fault{f}
		} else {
			of = []Fault{{Line: 1, Column: 1, Detail: err.Error()}}
		}
		for _, f := range of {
			if !slices.Contains(r.faults, f) {
				r.faults = append(r.faults, f)
			}
		}
	}
}

// Flat returns the errors that are joined in err, at any depth; none for nil.
func Flat(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !ok:
		return []error{err}
	}
	for _, err := range joined.Unwrap() {
		all = append(all, Flat(err)...)
	}
	return all
}
