package config

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/secure"
)

// Command returns the command config, which checks configuration files and prints the
// reference of their keys.
func Command(files Files) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check configuration files, and tell what may be in them",
		Long: `The files that roles are started with (--config FILE), and the file of contexts
("millrace help context"), have a reference, which is of the program itself, and a
check, which is the one that a role makes when it starts.`,
	}
	c.AddCommand(configCheckCommand(files), configReferenceCommand(files))
	return c
}

// configCheck is the command config check: its flags, and the kinds of files there are.
type configCheck struct {
	files     Files
	role      string
	output    display.Form
	effective bool
}

func configCheckCommand(files Files) *cobra.Command {
	check := configCheck{files: files}
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Report every fault of a configuration file, before a role reads it",
		Long: `Reads a file as its role does at its start, with the same flags and variables of
the environment over it, and reports every fault at once: its line, its key, what
is wrong, and what to write instead. The files that it names are read:
certificates, keys, passwords, tokens and feed definitions. Nothing is connected
to or written, so that only a start finds a port that is taken, or a data
directory of another.

Which role the file is of it says itself (role: broker), or --role does. A file
of contexts needs neither.

It ends with 1 if there are faults. Without any it notes secrets that every user
of the machine can read, and shows what was given, and where; --effective shows
the whole configuration, with what was left out, as a file. Passwords and tokens
are in neither.`,
		Example: `  millrace config check broker.yaml
  millrace config check --role indexnode --id node-1 node.yaml
  millrace config check broker.yaml --effective`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return check.run(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&check.role, "role", "", "which role the file is of: partitioner, indexnode, broker, coordinator or contexts")
	f.BoolVar(&check.effective, "effective", false, "show the whole configuration, with its defaults")
	display.Flag(c, &check.output)
	for _, of := range files.All {
		OwnFlags(f, of.New())
	}
	return c
}

func (check *configCheck) run(c *cobra.Command, file string) error {
	said := struct {
		File    string    `json:"file"`
		Role    string    `json:"role,omitempty"`
		Given   []Given   `json:"given"`
		Exposed []Exposed `json:"exposed"`
		Faults  []Fault   `json:"faults"`
	}{File: file}
	var cfg Configuration
	var err error
	secure.Check(func() { cfg, err = check.read(c, file, &said.Role, &said.Given) })
	wrong, ok := errors.AsType[*Invalid](err)
	if err != nil && !ok {
		return err
	}
	if ok {
		said.Faults = wrong.faults
	}
	if err == nil {
		said.Exposed = ExposedOf(file, cfg, said.Given)
	}
	said.Given, said.Exposed, said.Faults = display.List(said.Given), display.List(said.Exposed), display.List(said.Faults)
	shown := check.output.Write(c.OutOrStdout(), said, func(w io.Writer) error {
		switch {
		case ok:
			return nil
		case check.effective:
			text, err := document.Encode(cfg)
			if err != nil {
				return err
			}
			_, err = w.Write(text)
			return err
		}
		for _, e := range said.Exposed {
			fmt.Fprintf(w, "note: %s\n", e)
		}
		return summary(w, file, said.Role, said.Given)
	})
	if shown == nil && ok && check.output.JSON() { // the JSON has told the faults
		return fmt.Errorf("%s: %s", file, display.Faults(len(wrong.faults)))
	}
	return errors.Join(err, shown)
}

// read reads the file as the role of --role, or as the one that the file itself names. It
// sets *role to that, and *gave to the values that are given.
func (check *configCheck) read(c *cobra.Command, file string, role *string, gave *[]Given) (cfg Configuration, err error) {
	if *role = check.role; *role == "" {
		if *role, err = saysItself(file); err != nil {
			return nil, err
		}
	}
	if cfg, err = check.files.Named(*role); err != nil {
		return nil, err
	}
	calls, ok := cfg.(reaching)
	if ok {
		calls.ReadFrom(file)
	}
	if *gave, err = Read(file, cfg, c.Flags()); err != nil || !ok {
		return cfg, err
	}
	return cfg, placed(file, calls.Reach())
}

// reaching is a configuration of several clusters that can be called: the file of
// contexts. A command reads it and judges only the one that it calls; the check judges
// all.
type reaching interface {
	// ReadFrom says which file the configuration is read from.
	ReadFrom(file string)
	// Reach reports what is wrong with each context.
	Reach() error
}

// placed returns the faults in err with their lines in the file, as an [Invalid]; nil for
// nil.
func placed(file string, err error) error {
	if err == nil {
		return nil
	}
	text, unread := document.ReadFile(file)
	if unread != nil {
		return unread
	}
	var r reading
	r.document, _ = document.Parse(text) // the caller has the error of this, if there is one
	r.add(err)
	return &Invalid{file, r.faults}
}

// saysItself returns the role that a file names by its key role, or "contexts" if it has
// a key contexts. It fails if the file has neither.
func saysItself(file string) (string, error) {
	text, err := document.ReadFile(file)
	if err != nil {
		return "", err
	}
	n, err := document.Parse(text)
	if err != nil {
		return "", placed(file, err)
	}
	if n != nil {
		for _, e := range n.Entries {
			switch e.Key {
			case "role":
				return e.Value.Text, nil
			case "contexts":
				return "contexts", nil
			}
		}
	}
	return "", &millrace.Error{Reason: millrace.ReasonInvalid, Field: "role", Detail: "nothing says which role " + file + " is of", WayOut: "say --role, or write it into the file, such as role: broker"}
}

// summary shows what was given, and where.
func summary(w io.Writer, file, role string, all []Given) error {
	fmt.Fprintf(w, "ok: %s (%s)\n", file, role)
	t := display.NewTable(w)
	for _, g := range all {
		t.Printf("  %s\t%.100s\t%s\n", g.Key, g.Value, g.From)
	}
	return t.Flush()
}
