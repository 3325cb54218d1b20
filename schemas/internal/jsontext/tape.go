package jsontext

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
	"unsafe"
)

// Tape is a JSON text taken apart in one pass, without a copy of it: a token for
// each value and each member's name, in the order of the text. It accepts the texts
// that [Value] accepts, up to MaxBytes. Of others it does not say what is wrong.
type Tape struct {
	Text   []byte // as given to Read
	at     int    // the next byte to read
	Tokens []Token
}

// Token is a value of a text, or the name of a member. After an object's token come the
// tokens of its names and values by turns; after a list's token come those of its items.
type Token struct {
	Kind    Kind
	Escaped bool  // a string with escapes
	from    int32 // where it begins in the text; for a string, after the quote
	To      int32 // where it ends in the text; for an object or list, how many members or items it has
	Next    int32 // the index of the first token after it and all that is in it
}

// Kind is what a token is.
type Kind uint8

// The kinds. True is one more than False, so that Kind-False is the byte that Avro writes.
const (
	Null Kind = iota
	False
	True
	Number
	String
	List
	Object
)

// MaxBytes bounds a text that a Tape reads. It is far more than any record has.
const MaxBytes = 1 << 30

// Read takes a text apart, and reports whether it is JSON that Value accepts. The tape
// refers to text until the next Read.
func (t *Tape) Read(text []byte) bool {
	t.Text, t.at, t.Tokens = text, 0, t.Tokens[:0]
	return len(text) <= MaxBytes && utf8.Valid(text) && t.value(0) && t.peek() == 0 && t.at == len(text)
}

// peek skips white space, and returns the next byte without reading it, or 0 at the end.
func (t *Tape) peek() byte {
	for ; t.at < len(t.Text); t.at++ {
		switch c := t.Text[t.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// add adds a token that has no other tokens in it.
func (t *Tape) add(k Kind, escaped bool, from, to int) {
	t.Tokens = append(t.Tokens, Token{k, escaped, int32(from), int32(to), int32(len(t.Tokens) + 1)})
}

// value reads a value that is inside depth objects and lists.
func (t *Tape) value(depth int) bool {
	switch t.peek() {
	case '{':
		return depth < MaxDepth && t.object(depth+1)
	case '[':
		return depth < MaxDepth && t.list(depth+1)
	case '"':
		return t.string()
	case 'n':
		return t.word("null", Null)
	case 't':
		return t.word("true", True)
	case 'f':
		return t.word("false", False)
	}
	return t.number()
}

// word reads null, true or false.
func (t *Tape) word(word string, k Kind) bool {
	end := t.at + len(word)
	if end > len(t.Text) || string(t.Text[t.at:end]) != word {
		return false
	}
	t.add(k, false, t.at, end)
	t.at = end
	return true
}

// number reads a number. It returns false if the next byte does not begin one.
func (t *Tape) number() bool {
	from := t.at
	if t.is('-') {
		t.at++
	}
	if t.is('0') {
		t.at++
	} else if !t.digits() {
		return false
	}
	if t.is('.') {
		t.at++
		if !t.digits() {
			return false
		}
	}
	if t.is('e') || t.is('E') {
		t.at++
		if t.is('+') || t.is('-') {
			t.at++
		}
		if !t.digits() {
			return false
		}
	}
	t.add(Number, false, from, t.at)
	return true
}

func (t *Tape) is(c byte) bool { return t.at < len(t.Text) && t.Text[t.at] == c }

// digits reads digits, and reports whether there is one.
func (t *Tape) digits() bool {
	from := t.at
	for t.at < len(t.Text) && t.Text[t.at]-'0' <= 9 {
		t.at++
	}
	return t.at > from
}

// string reads a string, or a name.
func (t *Tape) string() bool {
	from, escaped := t.at+1, false
	for t.at = from; ; {
		t.at += plain(t.Text[t.at:])
		switch {
		case t.is('"'):
			t.add(String, escaped, from, t.at)
			t.at++
			return true
		case !t.is('\\') || !t.escape():
			return false
		}
		escaped = true
	}
}

// plain returns how many bytes come before the first quote, backslash or control
// character. It looks at eight bytes at a time: x has the highest bit of each byte set that
// is one of these, and the lowest bit of x is of the first.
func plain(b []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; n+8 <= len(b); n += 8 {
		w := binary.LittleEndian.Uint64(b[n:])
		quote, slash := w^'"'*ones, w^'\\'*ones
		if x := ((quote-ones)&^quote | (slash-ones)&^slash | (w-' '*ones)&^w) & highs; x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
	}
	for n < len(b) && b[n] >= ' ' && b[n] != '"' && b[n] != '\\' {
		n++
	}
	return n
}

// escape reads what a backslash begins.
func (t *Tape) escape() bool {
	t.at += 2
	if t.at > len(t.Text) {
		return false
	}
	switch t.Text[t.at-1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		_, ok := hex4(t.Text[t.at:])
		t.at += 4
		return ok
	}
	return false
}

// hex4 reads the four digits of an escaped code unit.
func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// begin adds the token of an object or list, and returns its index. end completes it: n is
// how many members or items it has.
func (t *Tape) begin(k Kind) (at int) {
	t.add(k, false, t.at, 0)
	t.at++
	return len(t.Tokens) - 1
}

func (t *Tape) end(at, n int) bool {
	t.at++
	t.Tokens[at].To, t.Tokens[at].Next = int32(n), int32(len(t.Tokens))
	return true
}

func (t *Tape) list(depth int) bool {
	at := t.begin(List)
	if t.peek() == ']' {
		return t.end(at, 0)
	}
	for n := 1; t.value(depth); n++ {
		switch t.peek() {
		case ',':
			t.at++
		case ']':
			return t.end(at, n)
		default:
			return false
		}
	}
	return false
}

func (t *Tape) object(depth int) bool {
	at := t.begin(Object)
	if t.peek() == '}' {
		return t.end(at, 0)
	}
	var d names
	for n := 1; t.peek() == '"' && t.string(); n++ {
		if !d.add(t, at) || t.peek() != ':' {
			return false
		}
		t.at++
		if !t.value(depth) {
			return false
		}
		switch t.peek() {
		case ',':
			t.at++
		case '}':
			return t.end(at, n) && (!d.later || t.distinct(at))
		default:
			return false
		}
	}
	return false
}

// names finds out whether an object has a name twice, while its names are read. It has a
// bit for each of 64 hashes; a name is compared with the names before it only if the bit
// of its hash is set already. Objects with escaped names, or with more than fewNames, are
// checked by distinct at their end.
type names struct {
	seen  uint64 // a bit for each hash of a name that was read
	n     int    // names so far
	later bool   // distinct has to check the object
}

// fewNames is up to how many names of an object are compared with each other.
const fewNames = 64

// add reports whether the last token, a name, is new in the object whose token is at. It
// also returns true if that is left to distinct.
func (d *names) add(t *Tape, at int) bool {
	last := len(t.Tokens) - 1
	tok := &t.Tokens[last]
	if d.n++; d.later || tok.Escaped || d.n > fewNames {
		d.later = true
		return true
	}
	name := t.Bytes(tok)
	h := uint64(len(name))
	if len(name) > 0 {
		h += uint64(name[0])*7 + uint64(name[len(name)-1])*31 + uint64(name[len(name)/2])*17
	}
	if bit := uint64(1) << (h & 63); d.seen&bit == 0 {
		d.seen |= bit
		return true
	}
	for i := at + 1; i < last; i = int(t.Tokens[i+1].Next) {
		if string(t.Bytes(&t.Tokens[i])) == string(name) {
			return false
		}
	}
	return true
}

// distinct reports whether all names of an object differ.
func (t *Tape) distinct(at int) bool {
	names := make(map[string]struct{}, t.Tokens[at].To)
	for i := at + 1; i < int(t.Tokens[at].Next); i = int(t.Tokens[i+1].Next) {
		names[string(t.AppendString(nil, &t.Tokens[i]))] = struct{}{}
	}
	return len(names) == int(t.Tokens[at].To)
}

// Bytes returns the text of a token that is no object or list: that of a string is without
// its quotes and with its escapes. It shares the memory of Text.
func (t *Tape) Bytes(tok *Token) []byte { return t.Text[tok.from:tok.To] }

// Raw returns Bytes as a string, which also shares the memory of Text.
func (t *Tape) Raw(tok *Token) string {
	b := t.Bytes(tok)
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// AppendString appends the text of a string, with its escapes resolved.
func (t *Tape) AppendString(dst []byte, tok *Token) []byte {
	b := t.Bytes(tok)
	if !tok.Escaped {
		return append(dst, b...)
	}
	for len(b) > 0 {
		n := plain(b)
		dst = append(dst, b[:n]...)
		if b = b[n:]; len(b) > 0 {
			dst, b = unescape(dst, b)
		}
	}
	return dst
}

// escapes is what the byte after a backslash stands for.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescape appends the character of the escape that b begins with, and returns what
// follows the escape. Half of a surrogate pair becomes U+FFFD, as in encoding/json.
func unescape(dst, b []byte) (_, rest []byte) {
	if b[1] != 'u' {
		return append(dst, escapes[b[1]]), b[2:]
	}
	r, _ := hex4(b[2:])
	b = b[6:]
	if r >= 0xd800 && r < 0xe000 {
		low := rune(0)
		if len(b) >= 6 && b[0] == '\\' && b[1] == 'u' {
			low, _ = hex4(b[2:])
		}
		if r < 0xdc00 && low >= 0xdc00 && low < 0xe000 {
			return utf8.AppendRune(dst, (r-0xd800)<<10|(low-0xdc00)+0x10000), b[6:]
		}
		r = utf8.RuneError
	}
	return utf8.AppendRune(dst, r), b
}
