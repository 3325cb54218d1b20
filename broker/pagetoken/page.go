// Package pagetoken writes and reads page tokens. A token holds all that a broker needs to
// go on with a feed, so that any broker can. It is signed, so that no caller can make or
// alter one. Package broker decides what a token holds; this package decides its form, and
// signs it.
package pagetoken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"

	"github.com/dchest/siphash"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance/experiment"
)

// The form of a page token, which is written in base64 for URLs, without padding:
//
//	version  1 byte
//	body     see [Cursor.Encode]
//	mac      the first 16 bytes of HMAC-SHA-256 of all before it
const (
	// A token has the lowest version that holds what its feed needs.
	tokenVersion  = 8 // variants, and a division of the entities; such a feed has no draft
	tokenDraft    = 7 // variants and a draft
	tokenVariants = 6 // variants
	tokenBefore   = 5 // no variants, no draft and no division

	macBytes = 16

	// Life is how long later pages of a feed may be asked for, after its first page.
	Life = 24 * time.Hour
	// MaxServed bounds the items on the pages of one feed: once so many have been
	// served, a further page is refused.
	MaxServed = 10_000
)

// Cursor is where a feed continues.
type Cursor struct {
	Keys   *Keys         // the keys that signed the token; [Ring.Open] sets this field, [Cursor.Encode] does not read it
	Issued millrace.Time // when the first page was asked for
	AsOf   millrace.Time // the time as of which all pages rank, which the first page fixed

	// All pages of a feed keep what was chosen for the first, whatever changes
	// meanwhile. The fields from here to Models hold that.
	Request   Identity              // see [Keys.Identify]
	Model     string                // the name of the model that ranks
	Version   string                // the version of Model; empty if the model is built in, as every node has it then
	Sum       string                // the model's checksum, as sumOf in package broker writes it
	Feed      string                // the version of the feed's definition; empty if the definition is built into the broker
	FeedSum   string                // the definition's checksum, as [Keys.Definition] writes it
	Variants  []experiment.Assigned // the variants of experiments that the viewer got; a token does not hold what they set
	HeldOut   []string              // names of the layers of experiments that give the viewer no variant
	Unapplied []string              // names of experiments whose variants the first page could not apply: their results count no page of this feed
	Draft     *Draft                // nil: no second model takes turns
	Divided   []experiment.Dealt    // the experiments that give each entity of the request a variant
	Models    []Ranked              // the versions that rank the groups into which Divided divides the entities

	Served []uint64 // millrace.ServedHash of every item so far, ascending
}

// Identity is a MAC of those parts of a request that must be the same on every page.
type Identity [16]byte

// Encode returns the token of the page at the cursor, signed with k.
func (c *Cursor) Encode(k *Keys) string {
	version := byte(tokenVersion)
	switch {
	case len(c.Divided) > 0:
	case len(c.Variants)+len(c.HeldOut) == 0:
		version = tokenBefore
	case c.Draft == nil:
		version = tokenVariants
	default:
		version = tokenDraft
	}
	b := []byte{version}
	b = binary.AppendUvarint(b, uint64(c.Issued))
	b = binary.AppendUvarint(b, uint64(c.AsOf))
	b = append(b, c.Request[:]...)
	for _, s := range []string{c.Model, c.Version, c.Sum, c.Feed, c.FeedSum} {
		b = appendPrefixed(b, s)
	}
	if version >= tokenVariants {
		b = appendVariants(b, c.Variants, c.HeldOut, c.Unapplied)
	}
	switch version {
	case tokenDraft:
		b = appendDraft(b, c.Draft)
	case tokenVersion:
		b = appendDivision(b, c.Divided, c.Models, c.Unapplied)
	}
	b = appendHashes(b, c.Served)
	return base64.RawURLEncoding.EncodeToString(append(b, mac(k.token, b)...))
}

// mac returns the first macBytes bytes of the HMAC-SHA-256 of b.
func mac(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)[:macBytes]
}

// splitToken takes a token apart: into the part that is signed, and the MAC.
func splitToken(token string) (signed, sum []byte, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) <= macBytes || strings.ContainsAny(token, "\r\n") { // base64 skips line ends
		return nil, nil, errors.New("this is no page token")
	}
	return b[:len(b)-macBytes], b[len(b)-macBytes:], nil
}

// signed reports whether sum is the MAC of b with a key.
func signed(b, sum, key []byte) bool { return hmac.Equal(sum, mac(key, b)) }

// decodeBody reads the version and the body of a token. It does not set Keys.
func decodeBody(b []byte) (*Cursor, error) {
	r := reader{b: b}
	v := r.bytes(1)
	if r.bad || v[0] < tokenBefore || v[0] > tokenVersion {
		return nil, errors.New("it is of another version")
	}
	c := &Cursor{Issued: millrace.Time(r.uvarint()), AsOf: millrace.Time(r.uvarint())}
	copy(c.Request[:], r.bytes(uint64(len(c.Request))))
	for _, s := range []*string{&c.Model, &c.Version, &c.Sum, &c.Feed, &c.FeedSum} {
		*s = string(r.bytes(r.uvarint()))
	}
	if v[0] >= tokenVariants {
		c.Variants, c.HeldOut, c.Unapplied = readVariants(&r)
	}
	switch v[0] {
	case tokenDraft:
		c.Draft = readDraft(&r)
	case tokenVersion:
		var unapplied []string
		c.Divided, c.Models, unapplied = readDivision(&r)
		c.Unapplied = append(c.Unapplied, unapplied...)
	}
	if r.bad {
		return nil, errors.New("it ends too soon")
	}
	var err error
	c.Served, err = decodeHashes(r.b)
	return c, err
}

// reader takes values off the front of b. Once a value is cut short, reads return zero
// values, or anything at all: the caller looks at bad before it uses them.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) bytes(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// Refuse returns the error for a later page that cannot be given; the detail is formatted
// as by Sprintf. The error advises the caller (WayOut) to ask for the first page again.
func Refuse(format string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonPageToken, Field: "page_token", Detail: fmt.Sprintf(format, args...), WayOut: "ask for the first page again, without a token"}
}

// Identify returns the MAC of those parts of a request that must be the same on every page.
// The viewer's attributes and features, and the entities, may come in any order. The caller
// gives the types sorted, and each entity once, encoded one after the other as
// [partition.CutEntity] reads them.
func (k *Keys) Identify(req *feedv1.GetFeedRequest, types []string, entities []byte) (id Identity) {
	b := make([]byte, 0, 512)
	for _, s := range []string{req.GetFeed(), req.GetViewer().GetId(), req.GetFilter(), req.GetModel()} {
		b = appendPrefixed(b, s)
	}
	for _, t := range []*timestamppb.Timestamp{req.GetFrom(), req.GetTo(), req.GetAsOf()} {
		if t == nil {
			b = append(b, 0)
			continue
		}
		b = binary.LittleEndian.AppendUint64(append(b, 1), uint64(t.GetSeconds()))
		b = binary.LittleEndian.AppendUint32(b, uint32(t.GetNanos()))
	}
	for _, t := range types {
		b = appendPrefixed(b, t)
	}
	names, attributes, features := k.set(), k.set(), k.set()
	for len(entities) > 0 {
		var e []byte
		e, entities = partition.CutEntity(entities)
		names.add(e)
	}
	room := make([]byte, 0, 256)
	for name, value := range req.GetViewer().GetAttributes() {
		attributes.add(appendAttribute(appendPrefixed(room, name), value))
	}
	for name, x := range req.GetViewer().GetFeatures() {
		features.add(binary.LittleEndian.AppendUint64(appendPrefixed(room, name), math.Float64bits(x)))
	}
	b = features.append(attributes.append(names.append(b)))
	copy(id[:], mac(k.request, b))
	return id
}

// Definition returns the text by which a token names a feed's definition, from the
// definition's checksum. For a private definition it is a MAC of the checksum: from the
// plain checksum a caller could find out whether a guess at the definition is right.
func (k *Keys) Definition(sum string, private bool) string {
	if !private {
		return sum
	}
	return hex.EncodeToString(mac(k.token, append([]byte("definition "), sum...)))
}

// setSum identifies a set of distinct items in any order: it is the sum of the items'
// SipHash-2-4 of 128 bits, modulo 2^128. A caller who knows neither the key nor any sum
// cannot make two sets with the same sum. So a sum is only used as input of a MAC, and
// never shown.
type setSum struct {
	key    [2]uint64
	lo, hi uint64 // the low and the high half of the sum
}

func (k *Keys) set() setSum { return setSum{key: k.sets} }

func (s *setSum) add(one []byte) {
	lo, hi := siphash.Hash128(s.key[0], s.key[1], one)
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi, _ = bits.Add64(s.hi, hi, carry)
}

func (s *setSum) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, s.lo), s.hi)
}

// appendAttribute appends the value of an attribute of the viewer. limits.CheckViewer in
// package broker/limits has checked it. False and null append nothing.
func appendAttribute(b []byte, v *structpb.Value) []byte {
	switch k := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		if k.BoolValue {
			return append(b, 't')
		}
	case *structpb.Value_NumberValue:
		return binary.LittleEndian.AppendUint64(append(b, 'n'), math.Float64bits(k.NumberValue))
	case *structpb.Value_StringValue:
		return appendPrefixed(append(b, 's'), k.StringValue)
	case *structpb.Value_ListValue:
		b = append(b, 'l')
		for _, e := range k.ListValue.GetValues() {
			b = appendAttribute(b, e)
		}
	}
	return b
}

// appendPrefixed appends the length of a string, and then the string.
func appendPrefixed(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
