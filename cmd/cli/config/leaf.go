package config

import (
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/internal/secure"
)

// Leaf is a key that has a value, and no keys below it. Path is the key with those above
// it, with dots between them.
type Leaf struct {
	Path  string
	Field reflect.StructField
	Value reflect.Value
}

// LeavesOf returns the leaves of a struct in order, with paths that begin with path. With
// names, for a reference, each mapping counts as one empty entry, whose key is the tag
// name of the field. Without names, the leaves of a mapping are those of its entries.
func LeavesOf(v reflect.Value, path string, names bool) (all []Leaf) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch key, inline := document.Key(f); {
		case inline:
			all = append(all, LeavesOf(v.Field(i), path, names)...)
		case key != "":
			all = append(all, leavesAt(Leaf{strings.TrimPrefix(path+"."+key, "."), f, v.Field(i)}, names)...)
		}
	}
	return all
}

func leavesAt(l Leaf, names bool) (all []Leaf) {
	switch {
	case l.Value.Kind() == reflect.Struct:
		return LeavesOf(l.Value, l.Path, names)
	case l.Value.Kind() != reflect.Map:
		return []Leaf{l}
	case names:
		return leavesAt(Leaf{l.Path + "." + l.Field.Tag.Get("name"), l.Field, reflect.New(l.Value.Type().Elem()).Elem()}, names)
	}
	keys := l.Value.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		all = append(all, leavesAt(Leaf{l.Path + "." + key.String(), l.Field, l.Value.MapIndex(key)}, names)...)
	}
	return all
}

// IsSecret reports whether the value is a secret, and not the name of a file with one.
func (l Leaf) IsSecret() bool { return l.Value.Type() == reflect.TypeFor[secure.Secret]() }

// set returns the setting whose pointer is to the leaf's value; nil: none.
func (l Leaf) set(by []Setting) *Setting {
	if !l.Value.CanAddr() {
		return nil
	}
	at := l.Value.Addr().Pointer()
	for i, s := range by {
		if s.Text != nil && reflect.ValueOf(s.Text).Pointer() == at || s.On != nil && reflect.ValueOf(s.On).Pointer() == at {
			return &by[i]
		}
	}
	return nil
}

// Text returns the value in one line. A secret shows itself as hidden.
func (l Leaf) Text() string {
	v := reflect.Indirect(l.Value)
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

// items returns the texts of a leaf that is a text or a list of texts, by their paths;
// nil for any other.
func (l Leaf) items() map[string]string {
	switch l.Value.Kind() {
	case reflect.String:
		return map[string]string{l.Path: l.Value.String()}
	case reflect.Slice:
		all := map[string]string{}
		for i := range l.Value.Len() {
			all[fmt.Sprintf("%s[%d]", l.Path, i)] = l.Value.Index(i).String()
		}
		return all
	}
	return nil
}

// Choices returns the texts that the leaf may be; nil: any.
func (l Leaf) Choices() []string {
	all := l.Field.Tag.Get("choices")
	if all == "" {
		return nil
	}
	return strings.Split(all, ", ")
}

// Validate reports what is wrong with the value by the tags of its field. A zero value
// counts as left out, and is not wrong.
func (l Leaf) Validate() (errs []error) {
	if l.Value.IsZero() {
		return nil
	}
	bad := func(path, detail, wayOut string) {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: path, Detail: detail, WayOut: wayOut})
	}
	items := l.items()
	for _, path := range slices.Sorted(maps.Keys(items)) {
		text := items[path]
		if choices := l.Choices(); choices != nil && !slices.Contains(choices, text) {
			bad(l.Path, fmt.Sprintf("%.40q is not known", text), hint.Nearest(text, choices))
		}
		if l.Field.Tag.Get("form") == hostPort {
			if fault := noHostPort(text); fault != "" {
				bad(path, fault, "write a host, a colon and a port, such as 127.0.0.1:9092")
			}
		}
	}
	if least, most, ok := strings.Cut(l.Field.Tag.Get("range"), ".."); ok {
		v := reflect.Indirect(l.Value)
		if x := v.Convert(reflect.TypeFor[float64]()).Float(); least != "" && x < bound(least) || most != "" && x > bound(most) {
			bad(l.Path, fmt.Sprintf("%v is out of its range", v.Interface()), "give "+inWords(least, most)+", or leave it out")
		}
	}
	return errs
}

// hostPort is the value of the tag form that [Leaf.Validate] checks.
const hostPort = "host:port"

// noHostPort says that an address is no host:port; "" if it is one.
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

// bound reads an end of a range: a number, or a duration, which becomes nanoseconds.
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
