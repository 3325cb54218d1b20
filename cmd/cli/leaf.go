package cli

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
