package schemas

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// tape is a JSON text taken apart in one pass, without a copy of it: a token for
// each value and each member's name, in the order of the text. It takes the texts
// that [readJSON] takes, and says of others no more than that.
type tape struct {
	text   []byte
	at     int
	tokens []token
}

// token is a value of a text, or the name of a member. Behind an object's token
// come names and values by turns, behind a list's its values.
type token struct {
	kind    tokenKind
	escaped bool  // a string with escapes
	from    int32 // where it begins in the text: of a string, behind the quote
	to      int32 // where it ends; of an object or list, how many members or items it has
	next    int32 // the token behind it and all that is in it
}

type tokenKind uint8

const (
	tokenNull tokenKind = iota
	tokenFalse
	tokenTrue
	tokenNumber
	tokenString
	tokenList
	tokenObject
)

// maxTapeBytes is more than any text has that becomes a body.
const maxTapeBytes = 1 << 30

// read takes a text apart, and reports whether it is JSON that readJSON takes.
func (t *tape) read(text []byte) bool {
	t.text, t.at, t.tokens = text, 0, t.tokens[:0]
	return len(text) <= maxTapeBytes && utf8.Valid(text) && t.value(0) && t.peek() == 0 && t.at == len(text)
}

// peek returns the next byte that is no space, or 0 at the end.
func (t *tape) peek() byte {
	for ; t.at < len(t.text); t.at++ {
		switch c := t.text[t.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// add adds the token of a value that ends here and has nothing in it.
func (t *tape) add(k tokenKind, escaped bool, from, to int) {
	t.tokens = append(t.tokens, token{k, escaped, int32(from), int32(to), int32(len(t.tokens) + 1)})
}

// value reads a value that depth others are around.
func (t *tape) value(depth int) bool {
	switch t.peek() {
	case '{':
		return depth < maxJSONDepth && t.object(depth+1)
	case '[':
		return depth < maxJSONDepth && t.list(depth+1)
	case '"':
		return t.string()
	case 'n':
		return t.word("null", tokenNull)
	case 't':
		return t.word("true", tokenTrue)
	case 'f':
		return t.word("false", tokenFalse)
	}
	return t.number()
}

func (t *tape) word(word string, k tokenKind) bool {
	end := t.at + len(word)
	if end > len(t.text) || string(t.text[t.at:end]) != word {
		return false
	}
	t.add(k, false, t.at, end)
	t.at = end
	return true
}

// number reads a number, which may begin with nothing that one begins with.
func (t *tape) number() bool {
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
	t.add(tokenNumber, false, from, t.at)
	return true
}

func (t *tape) is(c byte) bool { return t.at < len(t.text) && t.text[t.at] == c }

// digits reads digits, and reports whether there is one.
func (t *tape) digits() bool {
	from := t.at
	for t.at < len(t.text) && t.text[t.at]-'0' <= 9 {
		t.at++
	}
	return t.at > from
}

// string reads a string, or a name.
func (t *tape) string() bool {
	from, escaped := t.at+1, false
	for t.at = from; ; {
		t.at += plain(t.text[t.at:])
		switch {
		case t.is('"'):
			t.add(tokenString, escaped, from, t.at)
			t.at++
			return true
		case !t.is('\\') || !t.escape():
			return false
		}
		escaped = true
	}
}

// plain returns how many bytes a text begins with that a string has as they are:
// before the first quote, backslash or control character. It looks at eight at a
// time: the lowest bit that is left is of the first that is none.
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
func (t *tape) escape() bool {
	t.at += 2
	if t.at > len(t.text) {
		return false
	}
	switch t.text[t.at-1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		_, ok := hex4(t.text[t.at:])
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

// begin adds the token of an object or list, and end says what is in it.
func (t *tape) begin(k tokenKind) (at int) {
	t.add(k, false, t.at, 0)
	t.at++
	return len(t.tokens) - 1
}

func (t *tape) end(at, n int) bool {
	t.at++
	t.tokens[at].to, t.tokens[at].next = int32(n), int32(len(t.tokens))
	return true
}

func (t *tape) list(depth int) bool {
	at := t.begin(tokenList)
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

func (t *tape) object(depth int) bool {
	at := t.begin(tokenObject)
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

// names finds names that an object has twice, as they come: where a few bits of
// a name were seen, among those before it. Escaped names, and those of large
// objects, are left for later.
type names struct {
	seen  uint64
	n     int
	later bool
}

// fewNames is how many names of an object are compared with each other.
const fewNames = 64

// add reports whether the last token is a name that the object at at has not had.
func (d *names) add(t *tape, at int) bool {
	last := len(t.tokens) - 1
	tok := &t.tokens[last]
	if d.n++; d.later || tok.escaped || d.n > fewNames {
		d.later = true
		return true
	}
	name := t.bytes(tok)
	h := uint64(len(name))
	if len(name) > 0 {
		h += uint64(name[0])*7 + uint64(name[len(name)-1])*31 + uint64(name[len(name)/2])*17
	}
	if bit := uint64(1) << (h & 63); d.seen&bit == 0 {
		d.seen |= bit
		return true
	}
	for i := at + 1; i < last; i = int(t.tokens[i+1].next) {
		if string(t.bytes(&t.tokens[i])) == string(name) {
			return false
		}
	}
	return true
}

// distinct reports whether all names of an object differ.
func (t *tape) distinct(at int) bool {
	names := make(map[string]struct{}, t.tokens[at].to)
	for i := at + 1; i < int(t.tokens[at].next); i = int(t.tokens[i+1].next) {
		names[string(t.appendString(nil, &t.tokens[i]))] = struct{}{}
	}
	return len(names) == int(t.tokens[at].to)
}

// bytes is the text of a token without parts, as it stands.
func (t *tape) bytes(tok *token) []byte { return t.text[tok.from:tok.to] }

// raw is bytes as a string that holds as long as the text does.
func (t *tape) raw(tok *token) string { return alias(t.bytes(tok)) }

// appendString appends what a string says.
func (t *tape) appendString(dst []byte, tok *token) []byte {
	b := t.bytes(tok)
	if !tok.escaped {
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

// escapes are what a letter behind a backslash stands for.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescape appends what the escape stands for that b begins with, and returns what
// follows it. Half of a surrogate pair is no character, as encoding/json has it.
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
