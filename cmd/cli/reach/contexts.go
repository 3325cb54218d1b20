package reach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/hint"
)

// Contexts is the file of contexts: the clusters that somebody works on.
type Contexts struct {
	Current  string             `yaml:"current,omitempty" doc:"the context of commands that name none; millrace context use writes it"`
	Contexts map[string]Context `yaml:"contexts,omitempty" name:"NAME"`

	file string // the file that it was read from
}

// Context is a cluster as commands reach it.
type Context struct {
	Broker      string   `yaml:"broker,omitempty" form:"host:port" doc:"the gRPC of a Millrace broker, and not its port for JSON"`
	Admin       []string `yaml:"admin,omitempty" form:"host:port" doc:"admin ports of roles, which doctor asks"`
	Brokers     []string `yaml:"brokers,omitempty" form:"host:port" doc:"Kafka"`
	TopicPrefix string   `yaml:"topic_prefix,omitempty" doc:"stands before the names of Millrace's own topics"`
	Etcd        []string `yaml:"etcd,omitempty" form:"host:port" doc:"etcd"`
	Cluster     string   `yaml:"cluster,omitempty" default:"millrace" doc:"its name in etcd"`
	Security    `yaml:",inline"`
}

// address is a value of a [Context] that flags of commands take.
type address struct {
	flags []string // any of them takes the value
	env   string   // the variable that goes before the context
	value string   // of the context; empty: none
}

func (c *Context) addresses() []address {
	return []address{
		{[]string{"addr", "grpc"}, "MILLRACE_BROKER", c.Broker},
		{[]string{"admin"}, "MILLRACE_ADMIN", strings.Join(c.Admin, ",")},
		{[]string{"brokers"}, "MILLRACE_BROKERS", strings.Join(c.Brokers, ",")},
		{[]string{"topic-prefix"}, "MILLRACE_TOPIC_PREFIX", c.TopicPrefix},
		{[]string{"etcd"}, "MILLRACE_ETCD", strings.Join(c.Etcd, ",")},
		{[]string{"cluster"}, "MILLRACE_CLUSTER", c.Cluster},
	}
}

func addressVariables() (names []string) {
	for _, a := range new(Context).addresses() {
		names = append(names, a.env+" (--"+strings.Join(a.flags, ", --")+")")
	}
	return names
}

// contextsFile returns the path of the file of contexts: MILLRACE_CONTEXTS, or
// millrace/contexts.yaml below the user's configuration directory. A user who has no such
// directory has it below the current one.
func contextsFile() string {
	dir, _ := os.UserConfigDir()
	return cmp.Or(os.Getenv("MILLRACE_CONTEXTS"), filepath.Join(dir, "millrace", "contexts.yaml"))
}

// readContexts reads the file of contexts, and returns its path. Where there is no file
// there are no contexts; that is an error only if the environment names the file.
func readContexts() (file string, all Contexts, err error) {
	file = contextsFile()
	if _, err := os.Stat(file); os.IsNotExist(err) {
		if os.Getenv("MILLRACE_CONTEXTS") != "" {
			return file, all, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "MILLRACE_CONTEXTS", Detail: fmt.Sprintf("there is no file %s", file), WayOut: "name the file of contexts, or unset the variable for the one below the home directory"}
		}
		return file, all, nil
	}
	all.file = file
	_, err = config.Read(file, &all, nil)
	return file, all, err
}

// Settings implements [config.Configuration]. It returns none: flags and the environment
// set something for one command, and not in the file.
func (c *Contexts) Settings() []config.Setting { return nil }

// Complete implements [config.Configuration]. It does nothing: for what the file leaves out
// the defaults of the commands' flags apply.
func (c *Contexts) Complete() {}

// Validate reports what makes every command fail, whatever context it works on: a file with
// passwords in it that others may read.
func (c *Contexts) Validate() error {
	info, err := os.Stat(c.file)
	if err == nil && info.Mode().Perm()&0o077 != 0 && c.secret() {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "contexts", Detail: "the file holds passwords, and others may read it", WayOut: "chmod 600 it, or name files of passwords (password_file)"}
	}
	return err
}

// secret reports whether a password stands in the file itself.
func (c *Contexts) secret() bool {
	return slices.ContainsFunc(config.LeavesOf(reflect.ValueOf(c).Elem(), "", false), func(l config.Leaf) bool {
		return l.IsSecret() && !l.Value.IsZero()
	})
}

// ReadFrom sets the file that c is read from.
func (c *Contexts) ReadFrom(file string) { c.file = file }

// Reach returns what is wrong with each context, joined. They are the errors of commands
// that work on it.
func (c *Contexts) Reach() error {
	var errs []error
	if c.Current != "" {
		if _, err := c.find(c.file, c.Current); err != nil {
			e, _ := errors.AsType[*millrace.Error](err)
			errs = append(errs, &millrace.Error{Reason: e.Reason, Field: "current", Detail: e.Detail, WayOut: e.WayOut})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
		x, _ := c.find(c.file, name) // it is there
		s := &x.Security
		faults := []error{cluster.Config{Endpoints: x.Etcd, Access: s.Connections.Etcd, Name: cmp.Or(x.Cluster, "millrace")}.Validate()}
		if len(x.Etcd) == 0 {
			faults = nil
		}
		if len(x.Brokers) > 0 {
			faults = append(faults, s.Connections.Kafka.At(nil, x.Brokers...).Validate())
		}
		for i, addr := range append([]string{x.Broker}, x.Admin...) {
			if err := s.Plain().Check(addr); addr != "" && !s.TLS.On() && err != nil {
				e, _ := errors.AsType[*millrace.Error](err)
				if e.Field = "broker"; i > 0 {
					e.Field = fmt.Sprintf("admin[%d]", i-1)
				}
				faults = append(faults, e)
			}
		}
		_, err := s.Dial()
		for _, err := range config.Flat(errors.Join(append(faults, err)...)) {
			if e, ok := errors.AsType[*millrace.Error](err); ok {
				e.Field = "contexts." + name + "." + e.Field
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// find returns the context of a name. Relative paths of files in it become paths below the
// directory of the contexts' file.
func (c Contexts) find(file, name string) (Context, error) {
	x, ok := c.Contexts[name]
	if !ok {
		wayOut := hint.Nearest(name, slices.Sorted(maps.Keys(c.Contexts)))
		if len(c.Contexts) == 0 {
			wayOut = `write it there: "millrace help context" shows how`
		}
		return x, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "context", Detail: fmt.Sprintf("%s has no context %.60q", file, name), WayOut: wayOut}
	}
	dir := filepath.Dir(file)
	for _, s := range SettingsOf(&x.Security) {
		if isFile := s.Flag != "" && strings.Contains(s.Usage, "file"); isFile && *s.Text != "" && *s.Text != "system" && !filepath.IsAbs(*s.Text) {
			*s.Text = filepath.Join(dir, *s.Text)
		}
	}
	return x, nil
}

// InContext has a command work on the cluster of its context. A flag goes before the
// environment, and the environment before the context. A role has a configuration instead
// of a context, and a command that runs a cluster in its own process has neither: for both,
// --context is an error.
func InContext(c *cobra.Command) error {
	name, _ := c.Flags().GetString("context") // every command has it
	switch top := topCommand(c); {
	case top.GroupID == "run", top.Name() == "context", top.Name() == "config", top.Name() == "completion":
		if name != "" {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--context", Detail: top.Name() + " takes none", WayOut: "leave it out; a role has its configuration (--config), and context show its argument"}
		}
		return nil
	case top.GroupID == "try":
		return ownCluster(c, name)
	}
	file, all, err := readContexts()
	if err != nil {
		return err
	}
	var x Context
	if name = cmp.Or(name, os.Getenv("MILLRACE_CONTEXT"), all.Current); name != "" {
		if x, err = all.find(file, name); err != nil {
			return err
		}
	}
	for _, a := range x.addresses() {
		value := cmp.Or(os.Getenv(a.env), a.value)
		for _, flag := range a.flags {
			if f := c.Flags().Lookup(flag); f == nil || f.Changed || value == "" {
				continue
			}
			if err := c.Flags().Set(flag, value); err != nil {
				return fmt.Errorf("%s: %w", cmp.Or(os.Getenv(a.env), "context "+name), err)
			}
		}
	}
	if err := x.Security.override(c.Flags()); err != nil {
		return err
	}
	c.SetContext(context.WithValue(c.Context(), securityKey{}, &x.Security))
	return nil
}

// ownCluster returns an error if a command that runs a cluster in this process was given a
// context or flags of connections.
func ownCluster(c *cobra.Command, name string) error {
	given := ""
	if name != "" {
		given = "--context"
	}
	for _, s := range SettingsOf(new(Security)) {
		if f := c.Flags().Lookup(s.Flag); f != nil && f.Changed {
			given = "--" + s.Flag
		}
	}
	if given == "" {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: given, Detail: c.Name() + " is a cluster in this process, on loopback: its Kafka and its etcd have no TLS and no users",
		WayOut: "leave it out; on a secured Kafka and etcd run the roles: millrace partitioner, indexnode, broker and coordinator, with --config FILE each",
	}
}

// topCommand returns the command below millrace that c is, or is part of.
func topCommand(c *cobra.Command) *cobra.Command {
	for c.HasParent() && c.Parent().HasParent() {
		c = c.Parent()
	}
	return c
}

// Command returns the command context, which lists and shows contexts and chooses one.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "context",
		Short: "Name the clusters that commands work on, and choose one",
		Long: `A context is a cluster as commands reach it. Contexts are in a YAML file,
MILLRACE_CONTEXTS or ~/.config/millrace/contexts.yaml:

` + contextExample + `
A command works on the context that --context or MILLRACE_CONTEXT names, or on
the current one. What a flag or the environment says goes before it: see
"millrace help connections". Files are relative to the directory of the file of
contexts. A password belongs into a file of its own (password_file); where it
stands here (password), nobody else may be able to read the file.`,
	}
	c.AddCommand(
		display.Looking(&cobra.Command{Use: "list", Short: "List the contexts; * is the current one", Args: cobra.NoArgs}, func(c *cobra.Command, output *display.Form, _ []string) error {
			return listContexts(c.OutOrStdout(), output)
		}),
		&cobra.Command{Use: "use NAME", Short: "Make a context the current one", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
			return useContext(args[0])
		}},
		display.Looking(&cobra.Command{Use: "show [NAME]", Short: "Show a context, without its passwords", Args: cobra.MaximumNArgs(1)}, func(c *cobra.Command, output *display.Form, args []string) error {
			return showContext(c.OutOrStdout(), output, args)
		}),
	)
	return c
}

const contextExample = `  current: prod
  contexts:
    prod:
      broker: feed.example:9090        # a broker's gRPC
      admin: [node-1.example:6062]     # admin ports of roles, which doctor asks
      brokers: [kafka-1.example:9093]  # Kafka
      topic_prefix: ""
      etcd: [etcd-1.example:2379]
      cluster: millrace
      tls: {ca: ca.pem, cert: me.pem, key: me.key}  # at the ports of Millrace's own roles
      connect:
        kafka:
          tls: {ca: ca.pem}
          sasl: {mechanism: SCRAM-SHA-512, username: me, password_file: kafka-password}
        etcd:
          tls: {ca: ca.pem, server_name: etcd.example}
          username: me
          password_file: etcd-password
    local:
      broker: 127.0.0.1:9090
`

func listContexts(w io.Writer, output *display.Form) error {
	file, all, err := readContexts()
	if err != nil {
		return err
	}
	type listed struct {
		Name    string `json:"name"`
		Current bool   `json:"current"`
	}
	shown := struct {
		File     string   `json:"file"`
		Contexts []listed `json:"contexts"`
	}{file, []listed{}}
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		shown.Contexts = append(shown.Contexts, listed{name, name == cmp.Or(os.Getenv("MILLRACE_CONTEXT"), all.Current)})
	}
	return output.Write(w, shown, func(w io.Writer) error {
		if len(shown.Contexts) == 0 {
			fmt.Fprintf(w, "There are no contexts in %s\n", file)
		}
		for _, x := range shown.Contexts {
			mark := " "
			if x.Current {
				mark = "*"
			}
			fmt.Fprintf(w, "%s %s\n", mark, x.Name)
		}
		return nil
	})
}

func showContext(w io.Writer, output *display.Form, args []string) error {
	file, all, err := readContexts()
	if err != nil {
		return err
	}
	name := cmp.Or(append(args, os.Getenv("MILLRACE_CONTEXT"), all.Current)...)
	if name == "" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "context", Detail: file + " has no current context", WayOut: "name one, or make one the current one: millrace context use NAME"}
	}
	x, err := all.find(file, name)
	if err != nil {
		return err
	}
	text, err := document.Encode(Contexts{Contexts: map[string]Context{name: x}})
	if err != nil {
		return err
	}
	return output.Write(w, display.Object(text), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// currentLine is the line of the file that names the current context. It alone
// is replaced, so that all others stay as they were written.
var currentLine = regexp.MustCompile(`(?m)^current:.*$`)

func useContext(name string) error {
	file, all, err := readContexts()
	if err != nil {
		return err
	}
	if _, err := all.find(file, name); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("current: %q", name)
	next := currentLine.ReplaceAllLiteralString(string(text), line)
	if !currentLine.Match(text) {
		next = line + "\n" + next
	}
	return replaceFile(file, next)
}

// replaceFile writes a file anew, whole or not at all. It keeps the file's mode; a file that
// did not exist gets 0600.
func replaceFile(file, text string) error {
	mode := fs.FileMode(0o600)
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
	}
	next, err := os.CreateTemp(filepath.Dir(file), ".contexts-*")
	if err != nil {
		return err
	}
	defer os.Remove(next.Name()) // does nothing once it has been renamed
	_, err = next.WriteString(text)
	for _, step := range []func() error{func() error { return err }, func() error { return next.Chmod(mode) }, next.Sync, next.Close, func() error { return os.Rename(next.Name(), file) }} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// WithoutContext returns the environment for a child process that works on a cluster in
// this process. Its variables name no context and no addresses, whatever cluster the user
// works on, and MILLRACE_CONTEXTS is an empty file.
func WithoutContext() []string {
	others := []string{"MILLRACE_CONTEXT", "MILLRACE_CONTEXTS"}
	for _, a := range new(Context).addresses() {
		others = append(others, a.env)
	}
	env := slices.DeleteFunc(os.Environ(), func(of string) bool {
		name, _, _ := strings.Cut(of, "=")
		return slices.Contains(others, name)
	})
	return append(env, "MILLRACE_CONTEXTS="+os.DevNull)
}
