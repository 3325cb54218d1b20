package cli

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/hint"
)

// configuration is a file that the program reads: of a role, or of contexts. Its
// keys are the fields of a struct. What there is to say of a key stands in tags
// of the field, which the reference and the check read: a table beside it would
// be a second list of the same keys.
//
//	yaml      the key
//	doc       what it is for; every field has it. "-": a key of before, which is refused
//	default   what is used where it is left out, in words: only where complete gives no value
//	range     of a number or a time: LEAST..MOST, each of which may be left out
//	choices   the texts that it may be, or that may be in its list
//	form      what a text is: host:port is checked, others are for the reader
//	unit      of a number
//	name      stands for the keys of a mapping
//	secret    file: it names a file that nobody else may read
type configuration interface {
	// settings are what flags and the environment give, too.
	settings() []setting
	// validate reports every fault that no field shows by itself. It reads files, and
	// connects to nothing.
	validate() error
	// complete gives fields that were left out the values that are used instead.
	complete()
}

// configurationFiles are those that there are, by what they are of.
type configurationFiles struct {
	all       []configurationFile
	everyRole any // a struct, whose keys every role has
}

type configurationFile struct {
	of  string
	new func() configuration
}

func (files configurationFiles) names() (names []string) {
	for _, c := range files.all {
		names = append(names, c.of)
	}
	return names
}

// named returns an empty one.
func (files configurationFiles) named(name string) (configuration, error) {
	for _, c := range files.all {
		if c.of == name {
			return c.new(), nil
		}
	}
	wayOut := hint.Nearest(name, files.names())
	if name == "dev" || name == "demo" {
		wayOut = "it has no file: millrace help " + name + " shows its flags"
	}
	return nil, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "role", Detail: fmt.Sprintf("%.40q has no configuration", name), WayOut: wayOut}
}

// fault is one thing that is wrong with a configuration.
type fault struct {
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	From   string `json:"from,omitempty"` // the flag or variable that gives the value
	Field  string `json:"field,omitempty"`
	Detail string `json:"detail"`
	WayOut string `json:"way_out,omitempty"`
}

func (f fault) String() string {
	at := f.From
	if at == "" {
		at = fmt.Sprintf("line %d, column %d", f.Line, f.Column)
	}
	return at + ": " + f.err().Error()
}

func (f fault) err() *millrace.Error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: f.Field, Detail: f.Detail, WayOut: f.WayOut}
}

// invalid is a configuration that cannot be used, with every fault of it.
type invalid struct {
	file   string
	faults []fault
}

// Error renders a fault a line.
func (e *invalid) Error() string {
	lines := []string{e.file + ": " + faults(len(e.faults))}
	for _, f := range e.faults {
		lines = append(lines, "  "+f.String())
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the faults as refusals of fields.
func (e *invalid) Unwrap() (errs []error) {
	for _, f := range e.faults {
		errs = append(errs, f.err())
	}
	return errs
}

// given is a value that somebody gave, and where.
type given struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// reading is a configuration while it is read.
type reading struct {
	document *document.Node
	from     map[string]string // the flag or variable, by the path
	faults   []fault
}

// readConfiguration is how every configuration is read, by whom it is for and by
// config check: what the file says, then flags (nil: none) and the environment
// over it, then the checks, which report every fault at once, then what was left
// out. It returns what was given.
func readConfiguration(file string, cfg configuration, flags *pflag.FlagSet) ([]given, error) {
	text, err := document.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &reading{from: map[string]string{}}
	if r.document, err = document.Parse(text); err != nil {
		r.add(err)
		return nil, &invalid{file, r.faults}
	}
	r.add(r.document.Decode(cfg))
	settings := cfg.settings()
	if flags != nil {
		r.add(override(flags, settings))
	}
	all := leavesOf(reflect.ValueOf(cfg).Elem(), "", false)
	var gave []given
	for _, l := range all {
		if s := l.set(settings); s != nil && s.from != "" {
			r.from[l.path] = s.from
		}
		r.add(errors.Join(l.validate()...))
		if line, _ := r.document.Find(l.path); !l.value.IsZero() {
			gave = append(gave, given{l.path, l.text(), cmp.Or(r.from[l.path], fmt.Sprintf("line %d", line))})
		}
	}
	r.addNew(cfg.validate())
	if len(r.faults) > 0 {
		slices.SortStableFunc(r.faults, func(a, b fault) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
		return gave, &invalid{file, r.faults}
	}
	cfg.complete()
	return gave, nil
}

// addNew adds faults of fields that have none yet. Addresses are judged one by
// one first: connections to those that are none say no more.
func (r *reading) addNew(err error) {
	told := map[string]bool{}
	addresses := false
	for _, f := range r.faults {
		told[f.Field] = true
		addresses = addresses || strings.HasSuffix(f.Detail, "is no host:port")
	}
	for _, err := range flat(err) {
		e, ok := errors.AsType[*millrace.Error](err)
		if ok && (told[e.Field] || addresses && strings.Contains(e.Detail, "is no host:port")) {
			continue
		}
		r.add(err)
	}
}

// add adds faults with their places, each once.
func (r *reading) add(err error) {
	for _, err := range flat(err) {
		var of []fault
		if e, ok := errors.AsType[*document.Error](err); ok {
			for _, f := range e.Faults {
				of = append(of, fault{f.Line, f.Col, "", f.Field, f.Detail, f.WayOut})
			}
		} else if e, ok := errors.AsType[*millrace.Error](err); ok {
			f := fault{From: r.from[e.Field], Field: e.Field, Detail: e.Detail, WayOut: e.WayOut}
			if strings.HasPrefix(f.Field, "MILLRACE_") {
				f.From, f.Field = f.Field, ""
			}
			if f.From == "" {
				f.Line, f.Column = r.document.Find(f.Field)
			}
			of = []fault{f}
		} else {
			of = []fault{{Line: 1, Column: 1, Detail: err.Error()}}
		}
		for _, f := range of {
			if !slices.Contains(r.faults, f) {
				r.faults = append(r.faults, f)
			}
		}
	}
}

// flat takes joined errors apart.
func flat(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !ok:
		return []error{err}
	}
	for _, err := range joined.Unwrap() {
		all = append(all, flat(err)...)
	}
	return all
}
