package expr

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// String renders the tree for people and tests: (> record.likes 5).
func (n *Node) String() string {
	var b strings.Builder
	n.write(&b)
	return b.String()
}

func (n *Node) write(b *strings.Builder) {
	switch n.Op {
	case Const:
		b.WriteString(n.constant())
		return
	case Record, Entity, Object, Viewer:
		b.WriteString([...]string{Record: "record.", Entity: "entity.", Object: "object.", Viewer: "viewer."}[n.Op] + n.Name)
		return
	case AsOf:
		b.WriteString("as_of")
		return
	case Table:
		b.WriteString(n.Name)
		return
	}
	b.WriteByte('(')
	switch n.Op {
	case Has:
		b.WriteString("has")
	case Call:
		b.WriteString(n.Name)
	case List:
		b.WriteString("list")
	default:
		b.WriteString(opNames[n.Op])
	}
	for _, a := range n.Args {
		b.WriteByte(' ')
		a.write(b)
	}
	b.WriteByte(')')
}

func (n *Node) constant() string {
	switch v := n.Value.(type) {
	case nil:
		return "null"
	case string:
		return strconv.Quote(v)
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(s, ".eIN") {
			s += ".0"
		}
		return s
	case int64:
		if n.Type == Time || n.Type == Duration {
			return fmt.Sprintf("%s:%d", n.Type, v)
		}
		return strconv.FormatInt(v, 10)
	case *MapValue:
		if v.Strings != nil {
			return fmt.Sprintf("{%q %v}", v.Strings, v.Values)
		}
		return fmt.Sprintf("{%v %v}", v.Doubles, v.Values)
	}
	return fmt.Sprintf("%v", n.Value)
}

// Fields appends to dst the fields of records, entities and objects that a node and its
// operands read, such as record.likes, each once.
func (n *Node) Fields(dst []string) []string {
	switch n.Op {
	case Record, Entity, Object:
		if name := n.String(); !slices.Contains(dst, name) {
			dst = append(dst, name)
		}
	}
	for _, a := range n.Args {
		dst = a.Fields(dst)
	}
	return dst
}
