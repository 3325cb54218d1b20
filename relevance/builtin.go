package relevance

import (
	"embed"
	"maps"
	"sync"

	_ "github.com/millrace/millrace/relevance/models" // the generated code
	"github.com/millrace/millrace/schemas"
)

//go:embed builtin/*.yaml
var builtin embed.FS

var shipped = sync.OnceValue(func() Schemas {
	known, err := schemas.NewRegistry(nil, nil)
	if err != nil {
		panic(err)
	}
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Note(), schemas.Features()} {
		if _, err := known.Admit(s); err != nil {
			panic(err)
		}
	}
	all := Schemas{}
	all.add(known.Snapshot())
	return all
})

// ShippedSchemas are the schemas of every binary, for [Parse].
func ShippedSchemas() Schemas { return maps.Clone(shipped()) }

// SchemasOf returns the schemas that ship and those of a registry: what specs may
// name where these are known.
func SchemasOf(known *schemas.Snapshot) Schemas {
	all := ShippedSchemas()
	all.add(known)
	return all
}

func (s Schemas) add(known *schemas.Snapshot) {
	for _, f := range known.Families() {
		s[f.Name()] = Records{f.Layout(), f}
	}
}

// BuiltinSpec returns the source of a model that every binary has.
func BuiltinSpec(name string) ([]byte, error) { return builtin.ReadFile("builtin/" + name + ".yaml") }

var builtinModels = sync.OnceValue(func() map[string]*Model {
	models := map[string]*Model{}
	for _, name := range []string{"home", "recency"} {
		src, err := BuiltinSpec(name)
		if err != nil {
			panic(err)
		}
		m, err := Parse(name+".yaml", src, ShippedSchemas())
		if err != nil {
			panic(err)
		}
		models[name] = m
	}
	return models
})
