package expr

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Source returns a filter's node as CEL source, with parentheses around every operand
// that is an operation itself. It means the same as the source that the node was parsed
// from.
func (n *Node) Source() string {
	args := make([]string, len(n.Args))
	for i, a := range n.Args {
		args[i] = a.Source()
		if a.operates() && n.Op != List && n.Op != Has && (n.Op != Call || n.member() && i == 0) {
			args[i] = "(" + args[i] + ")"
		}
	}
	switch n.Op {
	case Const:
		return n.literal()
	case Record, Entity, Object, Viewer, AsOf, Table:
		return n.String()
	case Not, Neg:
		return opNames[n.Op] + args[0]
	case Cond:
		return args[0] + " ? " + args[1] + " : " + args[2]
	case Has:
		return "has(" + args[0] + ")"
	case List:
		return "[" + strings.Join(args, ", ") + "]"
	case Call:
		if n.member() {
			return args[0] + "." + n.Name + "(" + strings.Join(args[1:], ", ") + ")"
		}
		return n.Name + "(" + strings.Join(args, ", ") + ")"
	}
	return strings.Join(args, " "+opNames[n.Op]+" ")
}

// operates reports whether a node is written with an operator.
func (n *Node) operates() bool {
	switch n.Op {
	case Const: // a negative number is written with a -
		return strings.HasPrefix(n.literal(), "-")
	case Record, Entity, Object, Viewer, AsOf, Table, Has, List, Call:
		return false
	}
	return true
}

// member reports whether a call is written x.name(y).
func (n *Node) member() bool {
	list := filterFunctions[n.Name]
	return len(list) > 0 && list[0].member
}

// literal returns a constant of a filter as CEL source.
func (n *Node) literal() string {
	switch v := n.Value.(type) {
	case string:
		return strconv.Quote(v)
	case int64:
		switch n.Type {
		case Time:
			return fmt.Sprintf("timestamp(%q)", time.UnixMilli(v).UTC().Format("2006-01-02T15:04:05.999Z07:00"))
		case Duration:
			return fmt.Sprintf("duration(%q)", (time.Duration(v) * time.Millisecond).String())
		}
	}
	return n.constant()
}
