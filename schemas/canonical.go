package schemas

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/hamba/avro/v2"
	"github.com/hamba/avro/v2/pkg/crc64"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas/internal/jsontext"
)

// canonicalForm returns a type's Parsing Canonical Form (Avro specification,
// "Transforming into Parsing Canonical Form"). The library's own rendering is
// not it: that keeps logical types, and so fingerprints differently than every
// other implementation.
func canonicalForm(n *node) string {
	c := canonical{defined: map[string]bool{}}
	c.typ(n)
	return c.String()
}

// canonical writes canonical forms.
type canonical struct {
	strings.Builder
	defined map[string]bool
}

func (c *canonical) typ(n *node) {
	switch n.kind {
	case kindArray:
		c.WriteString(`{"type":"array","items":`)
		c.typ(n.items)
		c.WriteByte('}')
	case kindMap:
		c.WriteString(`{"type":"map","values":`)
		c.typ(n.items)
		c.WriteByte('}')
	case kindUnion:
		c.list(len(n.branches), func(i int) { c.typ(n.branches[i]) })
	case kindRecord, kindEnum, kindFixed:
		c.named(n)
	default:
		c.WriteString(strconv.Quote(n.kind.String()))
	}
}

// named writes a definition, and from then on its name. Names are letters,
// digits, _ and dots, so that Go quotes them as JSON does.
func (c *canonical) named(n *node) {
	if c.defined[n.name] {
		c.WriteString(strconv.Quote(n.name))
		return
	}
	c.defined[n.name] = true
	fmt.Fprintf(c, `{"name":%q,"type":%q,`, n.name, n.kind)
	switch n.kind {
	case kindEnum:
		c.WriteString(`"symbols":`)
		c.list(len(n.symbols), func(i int) { c.WriteString(strconv.Quote(n.symbols[i])) })
	case kindFixed:
		fmt.Fprintf(c, `"size":%d`, n.size)
	case kindRecord:
		c.WriteString(`"fields":`)
		c.list(len(n.fields), func(i int) {
			fmt.Fprintf(c, `{"name":%q,"type":`, n.fields[i].name)
			c.typ(n.fields[i].typ)
			c.WriteByte('}')
		})
	}
	c.WriteByte('}')
}

func (c *canonical) list(n int, item func(int)) {
	c.WriteByte('[')
	for i := range n {
		if i > 0 {
			c.WriteByte(',')
		}
		item(i)
	}
	c.WriteByte(']')
}

// fingerprint returns the CRC-64-AVRO of a canonical form.
func fingerprint(canonical string) millrace.Fingerprint {
	h := crc64.New()
	h.Write([]byte(canonical)) // never fails
	return millrace.Fingerprint(h.Sum64())
}

// secondReader refuses what the Avro library does not parse, so that a schema
// admitted here is one to other readers too. The library's global cache would
// carry names from one schema into the next; each gets a cache of its own. It
// reads the schema without the defaults of fields: of a union's it takes those of
// the first branch alone, as Avro did until 1.11.
func secondReader(avsc []byte) error {
	text, err := jsontext.Value(avsc)
	if err != nil {
		return fmt.Errorf("schemas: %w", err)
	}
	dropDefaults(text)
	bare, err := json.Marshal(text)
	if err != nil {
		return fmt.Errorf("schemas: %w", err)
	}
	if _, err := avro.ParseBytesWithCache(bare, "", &avro.SchemaCache{}); err != nil {
		return fmt.Errorf("schemas: %w", err)
	}
	return nil
}

// dropDefaults removes the defaults of fields from the JSON of a schema.
func dropDefaults(v any) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			dropDefaults(x)
		}
	case map[string]any:
		fields, _ := v["fields"].([]any)
		for _, f := range fields {
			if f, ok := f.(map[string]any); ok {
				delete(f, "default")
				dropDefaults(f["type"])
			}
		}
		for _, attr := range []string{"type", "items", "values"} {
			dropDefaults(v[attr])
		}
	}
}
