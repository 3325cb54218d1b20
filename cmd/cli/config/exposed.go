package config

import (
	"reflect"
	"strings"

	"github.com/millrace/millrace/internal/secure"
)

// Exposed is a secret that every user of the machine can read: Field is its key, and File
// the file in which it stands.
type Exposed struct {
	Field string `json:"field"`
	File  string `json:"file"`
}

// String says so in a line.
func (e Exposed) String() string {
	return e.Field + ": every user of this machine can read " + e.File + "; " + e.WayOut()
}

// WayOut is the command that closes the file.
func (e Exposed) WayOut() string { return "chmod o= " + e.File }

// ExposedOf returns the secrets of a configuration, a pointer to a struct, that stand in
// files that all can read. Such a file is one that a key names, or the configuration file
// itself, if gave says that a secret stands in it.
func ExposedOf(file string, cfg any, gave []Given) (all []Exposed) {
	here := map[string]bool{}
	for _, g := range gave {
		here[g.Key] = strings.HasPrefix(g.From, "line ")
	}
	for _, l := range LeavesOf(reflect.ValueOf(cfg).Elem(), "", false) {
		in := ""
		switch {
		case l.Value.IsZero():
		case l.IsSecret() && here[l.Path]:
			in = file
		case l.Field.Tag.Get("secret") == "file":
			in = l.Value.String()
		}
		if in != "" && secure.ReadableByAll(in) {
			all = append(all, Exposed{l.Path, in})
		}
	}
	return all
}
