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
	return column.NewLayout(fields)
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
