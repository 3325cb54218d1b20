package intake

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Text is a JSON text that [JSON] has found within the limits.
type Text struct {
	Rest     []byte   // the text, with the list of entities emptied
	Entities []string // what that list had
	Cost     int64    // the most bytes that parsing Rest takes, without Rest itself
}

// JSON checks a JSON text against the limits of size, depth and number of values,
// without parsing it. It reads the list of strings under path, such as "request",
// "entities", by hand, since that is nearly all of a large text. Most faults in the rest
// are left to the parser that reads Text.Rest. The error is a refusal.
func JSON(text []byte, path ...string) (Text, error) {
	if len(text) > MaxBytes {
		return Text{}, TooLong()
	}
	s := scanner{text: text, path: path}
	if err := s.value(0, 0); err != nil {
		return Text{}, err
	}
	n := len(text) - s.cut
	if n > MaxRestBytes {
		return Text{}, tooMuchBesides(n)
	}
	t := Text{Rest: text, Entities: s.entities, Cost: 2*int64(n) + valueBytes*int64(s.values)}
	if s.kept > 0 {
		t.Rest = append(s.rest, text[s.kept:]...)
	}
	return t, nil
}

// scanner goes through a text once.
type scanner struct {
	text   []byte
	at     int      // the offset in text of what is read next
	path   []string // the names that lead to the list of entities
	values int      // how many values have begun, without the entities

	rest     []byte // Text.Rest so far
	kept     int    // text[:kept] is in rest, without the lists of entities
	cut      int    // how many bytes of those lists were left out of rest
	entities []string
}

// syntax returns the refusal of a text with a fault at the present byte.
func (s *scanner) syntax(what string) error {
	return invalid("", "send one JSON object", "%s at byte %d", what, s.at)
}

// space skips white space and returns what follows, 0 at the end.
func (s *scanner) space() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// off is the parameter on of [scanner.value] for a value that the path does not lead to.
const off = -1

// value skips a value at a depth of nesting. on is how many names of the path lead to it,
// or [off]. If the whole path leads to it and it is a list, value reads it as the entities.
func (s *scanner) value(depth, on int) error {
	if s.values++; s.values > MaxValues {
		return tooManyValues()
	}
	if depth > MaxDepth {
		return tooDeep()
	}
	switch s.space() {
	case '{':
		return s.object(depth, on)
	case '[':
		if on == len(s.path) && on > 0 {
			return s.list()
		}
		return s.array(depth)
	case '"':
		_, err := s.quoted()
		return err
	case 0:
		return s.syntax("the text ends")
	case ',', ':', ']', '}':
		return s.syntax("no value")
	}
	for s.at < len(s.text) && bytes.IndexByte([]byte(",:]}[{\" \t\r\n"), s.text[s.at]) < 0 { // a number or a word
		s.at++
	}
	return nil
}

// object skips an object at a depth of nesting. on is as in value.
func (s *scanner) object(depth, on int) error {
	s.at++
	if s.space() == '}' {
		s.at++
		return nil
	}
	for ; ; s.at++ {
		if s.space() != '"' {
			return s.syntax("no name")
		}
		name, err := s.quoted()
		if err != nil {
			return err
		}
		if s.space() != ':' {
			return s.syntax("no colon")
		}
		s.at++
		next := off
		if on >= 0 && on < len(s.path) && string(name) == s.path[on] {
			next = on + 1
		}
		if err := s.value(depth+1, next); err != nil {
			return err
		}
		switch s.space() {
		case ',':
		case '}':
			s.at++
			return nil
		default:
			return s.syntax("neither a comma nor a bracket")
		}
	}
}

// array skips an array at a depth of nesting that is not the list of entities.
func (s *scanner) array(depth int) error {
	s.at++
	if s.space() == ']' {
		s.at++
		return nil
	}
	for ; ; s.at++ {
		if err := s.value(depth+1, off); err != nil {
			return err
		}
		switch s.space() {
		case ',':
		case ']':
			s.at++
			return nil
		default:
			return s.syntax("neither a comma nor a bracket")
		}
	}
}

// quoted skips a string and returns what is between its quotes.
func (s *scanner) quoted() ([]byte, error) {
	s.at++
	for from := s.at; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '"':
			s.at++
			return s.text[from : s.at-1], nil
		case '\\':
			s.at++
		}
	}
	return nil, s.syntax("a string does not end")
}

// list reads the list of entities, to which the path leads, and leaves its elements out
// of rest.
func (s *scanner) list() error {
	field := s.path[len(s.path)-1]
	s.at++
	begin := s.at
	for n := 0; s.space() != ']'; n++ {
		if n == MaxEntities {
			return tooManyEntities(field)
		}
		if s.space() != '"' {
			return invalid(field, "send a list, each a string", "%s[%d] is no string", field, n)
		}
		raw, err := s.quoted()
		if err != nil {
			return err
		}
		entity, ok := unquote(raw)
		if !ok {
			return invalid(field, "send strings of UTF-8, escaped as JSON does", "%s[%d] is not one", field, n)
		}
		if s.entities == nil {
			s.entities = make([]string, 0, min(MaxEntities, len(s.text)/8))
		}
		s.entities = append(s.entities, entity)
		if c := s.space(); c == ',' {
			s.at++
			if s.space() == ']' {
				return s.syntax("a comma before a bracket")
			}
		} else if c != ']' {
			return s.syntax("neither a comma nor a bracket")
		}
	}
	if s.rest == nil {
		s.rest = make([]byte, 0, min(len(s.text)-(s.at-begin), MaxRestBytes))
	}
	s.rest = append(s.rest, s.text[s.kept:min(begin, s.kept+MaxRestBytes+1)]...) // JSON refuses a longer rest, so no more is copied
	s.kept = s.at
	s.cut += s.at - begin
	s.at++
	return nil
}

// unquote returns the string that the raw JSON text between two quotes stands for. It
// reports false if raw is no valid JSON string or no UTF-8.
func unquote(raw []byte) (string, bool) {
	plain := !slices.ContainsFunc(raw, func(c byte) bool { return c == '\\' || c < ' ' })
	if plain {
		return string(raw), utf8.Valid(raw)
	}
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		switch c := raw[0]; {
		case c < ' ':
			return "", false
		case c != '\\':
			out, raw = append(out, c), raw[1:]
		default:
			r, n := escape(raw)
			if n == 0 {
				return "", false
			}
			out, raw = utf8.AppendRune(out, r), raw[n:]
		}
	}
	return string(out), utf8.Valid(out)
}

// escape returns the character that the escape at the start of raw stands for, and the
// length of the escape in bytes. The length is 0 if there is no valid escape.
func escape(raw []byte) (rune, int) {
	if len(raw) < 2 {
		return 0, 0
	}
	if raw[1] != 'u' {
		if i := strings.IndexByte(`"\/bfnrt`, raw[1]); i >= 0 {
			return rune("\"\\/\b\f\n\r\t"[i]), 2
		}
		return 0, 0
	}
	r, ok := hex4(raw)
	switch {
	case !ok:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, 6
	}
	low, ok := hex4(raw[6:])
	if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// hex4 returns the 16-bit number of an escape \uXXXX at the start of raw, and whether
// there is one.
func hex4(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	var two [2]byte
	_, err := hex.Decode(two[:], raw[2:6])
	return rune(two[0])<<8 | rune(two[1]), err == nil
}
