package schemas

import "github.com/millrace/millrace/internal/column"

// layoutOf returns the columns of a record.
func layoutOf(root *node) (*column.Layout, error) {
	fields := flatten(nil, root, "", false)
	for i := range fields {
		for j := range root.fields {
			if root.fields[j].name == fields[i].Name {
				fields[i].Role = root.fields[j].role
			}
		}
	}
	fields = append(fields,
		column.Field{Name: BodyColumn, Kind: column.String},
		column.Field{Name: SchemaColumn, Kind: column.Int})
	l, err := column.NewLayout(fields)
	if err != nil {
		return nil, err
	}
	blank, err := blankOf(root, l)
	if err != nil {
		return nil, err
	}
	l.Describe(blank, carried(map[string]string{}, root, "", l))
	return l, nil
}

// blankOf returns a row of defaults.
func blankOf(root *node, l *column.Layout) (*column.Slab, error) {
	c := newCompiler()
	c.layout = l
	p, err := c.defaults(nil, root, "")
	if err != nil {
		return nil, err
	}
	a := column.New(l, 1, 0).Append()
	m := machine{row: a.Begin()}
	m.run(p)
	m.release()
	if err := a.End(m.row); err != nil {
		return nil, err
	}
	return a.Slab(), nil
}

// defaults appends what puts every default of a record's fields.
func (c *compiler) defaults(p plan, n *node, path string) (_ plan, err error) {
	for i := range n.fields {
		f, at := &n.fields[i], join(path, n.fields[i].name)
		switch {
		case f.hasDefault:
			p, err = c.missing(p, f, at)
		case f.typ.kind == kindRecord:
			p, err = c.defaults(p, f.typ, at)
		}
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// carried adds the fields that have no column, and their types.
func carried(types map[string]string, n *node, path string, l *column.Layout) map[string]string {
	for i := range n.fields {
		at, t := join(path, n.fields[i].name), n.fields[i].typ
		if one, ok := t.nullable(); ok {
			t = one
		}
		switch {
		case t.kind == kindRecord:
			carried(types, t, at, l)
		case l.Index(at) < 0:
			types[at] = t.what()
		}
	}
	return types
}

// flatten appends the columns of the type at path. Below a nullable record
// every column is nullable.
func flatten(fields []column.Field, n *node, path string, nullable bool) []column.Field {
	if n.kind == kindUnion {
		t, ok := n.nullable()
		if !ok {
			return fields
		}
		n, nullable = t, true
	}
	if n.kind == kindRecord {
		for i := range n.fields {
			fields = flatten(fields, n.fields[i].typ, join(path, n.fields[i].name), nullable)
		}
		return fields
	}
	if k := columnKind(n); k != 0 {
		fields = append(fields, column.Field{Name: path, Kind: k, Nullable: nullable})
	}
	return fields
}

// columnKind returns the kind of a type's column, or 0 when it has none.
func columnKind(n *node) column.Kind {
	switch n.kind {
	case kindBoolean:
		return column.Bool
	case kindInt, kindLong:
		if n.logical == "timestamp-millis" {
			return column.Time
		}
		return column.Int
	case kindFloat, kindDouble:
		return column.Double
	case kindString, kindEnum:
		return column.String
	case kindArray:
		switch n.items.kind {
		case kindInt, kindLong, kindFloat, kindDouble:
			return column.Doubles
		case kindString, kindEnum:
			return column.Strings
		}
	}
	return 0
}
