package schemas

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// machine reads one body by the steps of a plan, and puts its values into columns, or
// keeps those that have a role.
type machine struct {
	input
	path string     // of the field at fault
	row  column.Row // for plans that fill columns
	base int        // where in the row's heap the body begins
	list *lists     // nil until the first list
	kept *kept      // for plans that keep the values of roles
}

// kept is the values of the fields that have a role (id, entity, time and so on), each in
// the slot of its role.
type kept struct {
	texts [textSlots][]byte
	ints  [intSlots]int64
	about []string
}

// lists collects the items of a list.
type lists struct {
	doubles []float64
	strings []string
}

var listPool = sync.Pool{New: func() any { return new(lists) }}

// release gives back what the machine took from pools.
func (m *machine) release() {
	if m.list != nil {
		clear(m.list.strings) // they point into the body
		listPool.Put(m.list)
		m.list = nil
	}
}

// whole runs the plan of a whole body. It fails if the body goes on after the record. The
// error is an [*Error].
func (m *machine) whole(p plan) error {
	if len(m.b) > millrace.MaxBodyBytes {
		return &Error{Reason: OverLimit, Detail: fmt.Sprintf("the body has %d bytes; at most %d are allowed", len(m.b), millrace.MaxBodyBytes)}
	}
	if !m.run(p) {
		return &Error{Reason: m.fault, Field: m.path, Detail: explain[m.fault]}
	}
	if m.at < len(m.b) {
		return trailing(len(m.b) - m.at)
	}
	return nil
}

func trailing(bytes int) error {
	return &Error{Reason: TrailingBytes, Detail: fmt.Sprintf("%d bytes follow the record", bytes)}
}

// explain is what each reason of a decoder means, in words.
var explain = map[Reason]string{
	Truncated:       "the body ends here",
	BadVarint:       "the integer is not in its shortest form or out of its type's range",
	BadCount:        "the length or count is negative, too large, or disagrees with its block",
	BadBoolean:      "a boolean is the byte 0 or 1",
	BadUnionIndex:   "the union has no such branch",
	BadEnumIndex:    "the enum has no such symbol",
	DuplicateMapKey: "the map says a key twice",
	InvalidUTF8:     "the string is not UTF-8",
	NotFinite:       "the number is NaN or infinite",
	TimeOutOfRange:  "the time is before 1970 or after the year 9999; it counts milliseconds",
}

// run does the steps of p, and reports whether all went well. If not, m.fault
// says why, and m.path at which field.
func (m *machine) run(p plan) bool {
	for i := range p {
		s := &p[i]
		switch s.op {
		case opBoolean:
			m.putBool(s, m.boolean())
		case opInt:
			m.putInt(s, m.int())
		case opLong:
			m.putInt(s, m.long())
		case opTime:
			m.putInt(s, m.time())
		case opFloat:
			m.putDouble(s, m.float())
		case opDouble:
			m.putDouble(s, m.double())
		case opBytes:
			m.bytes()
		case opString:
			m.putString(s, m.string())
		case opFixed:
			m.take(s.n)
		case opEnum:
			m.enum(s)
		case opArray:
			m.array(s)
		case opMap:
			m.mapping(s)
		case opUnion:
			if i := m.index(len(s.subs), BadUnionIndex); m.fault == "" {
				m.run(s.subs[i])
			}
		case opNull:
			m.row.SetNull(s.at)
		case opDefault:
			m.putDefault(s)
		case opCopy:
			m.row.CopyField(s.at, s.n)
		}
		if m.fault != "" {
			if m.path == "" {
				m.path = s.path
			}
			return false
		}
	}
	return true
}

// time reads a record's time, in milliseconds, and checks its range.
func (m *machine) time() int64 {
	t := m.long()
	if t < int64(millrace.MinTime) || t >= int64(millrace.MaxTime) {
		m.fail(TimeOutOfRange)
		return 0
	}
	return t
}

func (m *machine) putBool(s *step, x bool) {
	switch s.put {
	case putBool:
		m.row.SetBool(s.at, x)
	case keepInt:
		if x {
			m.kept.ints[s.at] = 1
		}
	}
}

func (m *machine) putInt(s *step, x int64) {
	switch s.put {
	case putInt:
		m.row.SetInt(s.at, x)
	case keepInt:
		m.kept.ints[s.at] = x
	case putNothing:
	default:
		m.putDouble(s, float64(x))
	}
}

func (m *machine) putDouble(s *step, x float64) {
	switch s.put {
	case putDouble:
		m.row.SetDouble(s.at, x)
	case putFloat:
		m.row.SetDouble(s.at, float64(float32(x)))
	case pushDouble:
		m.list.doubles = append(m.list.doubles, x)
	case pushFloat:
		m.list.doubles = append(m.list.doubles, float64(float32(x)))
	}
}

// putString puts or keeps x, which is a part of the body.
func (m *machine) putString(s *step, x []byte) {
	switch s.put {
	case putString:
		m.row.SetHeapString(s.at, x, m.base+m.at-len(x))
	case keepString:
		m.kept.texts[s.at] = x
	case pushString:
		m.pushString(x)
	}
}

func (m *machine) enum(s *step) {
	i := m.index(s.n, BadEnumIndex)
	if m.fault != "" || s.syms == nil {
		return
	}
	if s.put == putString {
		m.row.SetString(s.at, s.syms[i]) // not a part of the body
		return
	}
	m.putString(s, s.syms[i])
}

func (m *machine) array(s *step) {
	if s.put != putNothing {
		m.collect()
	}
	for {
		count, end := m.block()
		if m.fault != "" {
			return
		}
		if count == 0 {
			break
		}
		if !m.items(s, count) {
			return
		}
		m.endBlock(end)
	}
	switch s.put {
	case putDoubles:
		m.row.SetDoubles(s.at, m.list.doubles)
	case putStrings:
		m.row.SetStrings(s.at, m.list.strings)
	case keepStrings:
		m.kept.about = append([]string(nil), m.list.strings...)
	}
}

// items reads the items of a block. For floats and strings, the most frequent items, it
// does not run a plan. It reports whether there is no fault.
func (m *machine) items(s *step, count int) bool {
	p := s.subs[0]
	switch {
	case s.put == putDoubles && p[0].op == opFloat:
		for ; count > 0 && m.fault == ""; count-- {
			m.list.doubles = append(m.list.doubles, m.float())
		}
	case s.put == putNothing && len(p) == 1 && p[0].op == opFloat:
		for ; count > 0 && m.fault == ""; count-- {
			m.float()
		}
	case p[0].put == pushString && p[0].op == opString:
		for ; count > 0 && m.fault == ""; count-- {
			m.pushString(m.string())
		}
	default:
		for ; count > 0 && m.run(p); count-- {
		}
	}
	return m.fault == ""
}

// pushString adds a string to the list without a copy. The list is not used after the
// body.
func (m *machine) pushString(x []byte) {
	m.list.strings = append(m.list.strings, alias(x))
}

// collect begins a list. Lists do not nest, since a list of lists has no
// column.
func (m *machine) collect() {
	if m.list == nil {
		m.list = listPool.Get().(*lists)
	}
	m.list.doubles, m.list.strings = m.list.doubles[:0], m.list.strings[:0]
}

func (m *machine) mapping(s *step) {
	var keys map[string]struct{}
	for {
		count, end := m.block()
		if count == 0 || m.fault != "" {
			return
		}
		if keys == nil {
			keys = make(map[string]struct{}, min(count, 64))
		}
		for ; count > 0; count-- {
			b := m.string()
			key := alias(b) // the body outlives keys
			if _, twice := keys[key]; twice && m.fault == "" {
				m.fail(DuplicateMapKey)
			}
			if m.fault != "" || !m.run(s.subs[0]) {
				return
			}
			keys[key] = struct{}{}
		}
		m.endBlock(end)
	}
}

// putDefault runs a step's plan over its default in place of the body.
func (m *machine) putDefault(s *step) {
	body, base := m.input, m.base
	m.input, m.base = input{b: s.def}, m.row.Heap(s.def)
	m.run(s.subs[0])
	m.input, m.base = body, base
}
