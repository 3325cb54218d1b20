package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/internal/secure"
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

// configurationFiles are all of them, by what they are of.
var configurationFiles = []struct {
	of  string
	new func() configuration
}{
	{"partitioner", func() configuration { return new(partitionerConfig) }},
	{"indexnode", func() configuration { return new(indexnodeConfig) }},
	{"broker", func() configuration { return new(brokerConfig) }},
	{"coordinator", func() configuration { return new(coordinatorConfig) }},
	{"contexts", func() configuration { return new(Contexts) }},
}

func configurationNames() (names []string) {
	for _, c := range configurationFiles {
		names = append(names, c.of)
	}
	return names
}

// configurationOf returns an empty one.
func configurationOf(name string) (configuration, error) {
	for _, c := range configurationFiles {
		if c.of == name {
			return c.new(), nil
		}
	}
	wayOut := hint.Nearest(name, configurationNames())
	if name == "dev" || name == "demo" {
		wayOut = "it has no file: millrace help " + name + " shows its flags"
	}
	return nil, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "role", Detail: fmt.Sprintf("%.40q has no configuration", name), WayOut: wayOut}
}

// leaf is a key that has a value, and no keys below it.
type leaf struct {
	path  string
	field reflect.StructField
	value reflect.Value
}

// leavesOf returns the leaves of a struct in order. With names, each mapping has
// one entry, whose key is the name of the tag.
func leavesOf(v reflect.Value, path string, names bool) (all []leaf) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch key, inline := document.Key(f); {
		case inline:
			all = append(all, leavesOf(v.Field(i), path, names)...)
		case key != "":
			all = append(all, leavesAt(leaf{strings.TrimPrefix(path+"."+key, "."), f, v.Field(i)}, names)...)
		}
	}
	return all
}

func leavesAt(l leaf, names bool) (all []leaf) {
	switch {
	case l.value.Kind() == reflect.Struct:
		return leavesOf(l.value, l.path, names)
	case l.value.Kind() != reflect.Map:
		return []leaf{l}
	case names:
		return leavesAt(leaf{l.path + "." + l.field.Tag.Get("name"), l.field, reflect.New(l.value.Type().Elem()).Elem()}, names)
	}
	keys := l.value.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		all = append(all, leavesAt(leaf{l.path + "." + key.String(), l.field, l.value.MapIndex(key)}, names)...)
	}
	return all
}

// isSecret reports whether the value itself must not be seen.
func (l leaf) isSecret() bool { return l.value.Type() == reflect.TypeFor[secure.Secret]() }

// set returns which of the settings gives the leaf; nil: none.
func (l leaf) set(by []setting) *setting {
	if !l.value.CanAddr() {
		return nil
	}
	at := l.value.Addr().Pointer()
	for i, s := range by {
		if s.text != nil && reflect.ValueOf(s.text).Pointer() == at || s.on != nil && reflect.ValueOf(s.on).Pointer() == at {
			return &by[i]
		}
	}
	return nil
}

// text is the value in a line, where it is no secret.
func (l leaf) text() string {
	v := reflect.Indirect(l.value)
	if !v.IsValid() {
		return ""
	}
	if v.Kind() == reflect.Slice {
		var items []string
		for i := range v.Len() {
			items = append(items, v.Index(i).String())
		}
		return strings.Join(items, ", ")
	}
	return fmt.Sprint(v.Interface()) // secrets hide themselves
}

// items are the texts of a leaf that is one, or a list of them, by their paths.
func (l leaf) items() map[string]string {
	switch l.value.Kind() {
	case reflect.String:
		return map[string]string{l.path: l.value.String()}
	case reflect.Slice:
		all := map[string]string{}
		for i := range l.value.Len() {
			all[fmt.Sprintf("%s[%d]", l.path, i)] = l.value.Index(i).String()
		}
		return all
	}
	return nil
}

// choices are the texts that the leaf may be; none: any.
func (l leaf) choices() []string {
	all := l.field.Tag.Get("choices")
	if all == "" {
		return nil
	}
	return strings.Split(all, ", ")
}

// validate reports what is wrong with the value by itself, by its tags. What was
// left out is not.
func (l leaf) validate() (errs []error) {
	if l.value.IsZero() {
		return nil
	}
	bad := func(path, detail, wayOut string) {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: path, Detail: detail, WayOut: wayOut})
	}
	items := l.items()
	for _, path := range slices.Sorted(maps.Keys(items)) {
		text := items[path]
		if choices := l.choices(); choices != nil && !slices.Contains(choices, text) {
			bad(l.path, fmt.Sprintf("%.40q is not known", text), hint.Nearest(text, choices))
		}
		if l.field.Tag.Get("form") == hostPort {
			if fault := noHostPort(text); fault != "" {
				bad(path, fault, "write a host, a colon and a port, such as 127.0.0.1:9092")
			}
		}
	}
	if least, most, ok := strings.Cut(l.field.Tag.Get("range"), ".."); ok {
		v := reflect.Indirect(l.value)
		if x := v.Convert(reflect.TypeFor[float64]()).Float(); least != "" && x < bound(least) || most != "" && x > bound(most) {
			bad(l.path, fmt.Sprintf("%v is out of its range", v.Interface()), "give "+inWords(least, most)+", or leave it out")
		}
	}
	return errs
}

const hostPort = "host:port"

func noHostPort(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port) // a number, or a name that this machine has
	}
	if err != nil {
		return fmt.Sprintf("%.100q is no host:port", addr)
	}
	return ""
}

// bound reads an end of a range: a number, or a time.
func bound(text string) float64 {
	if d, err := time.ParseDuration(text); err == nil {
		return float64(d)
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic("configuration: a range to " + text) // a bug of the struct
	}
	return x
}

func inWords(least, most string) string {
	switch {
	case most == "":
		return least + " or more"
	case least == "":
		return most + " or less"
	}
	return least + " to " + most
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
