// Package pagetoken writes and reads page tokens: all that a broker needs to go on
// with a feed, so that any broker can, signed so that no caller makes or alters
// one. The pages before decide what a token holds; this package decides its form,
// and with what it is signed.
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

// A page token is all that a broker knows of the pages before, so that any
// broker can continue:
//
//	version  1 byte
//	body     see [Cursor.Encode]
//	mac      16 bytes: HMAC-SHA-256 of what is before it, cut
//
// in base64 for URLs, without padding.
const (
	tokenVersion  = 8 // which divides entities, and has no draft; a page that does not has
	tokenDraft    = 7 // yet, or
	tokenVariants = 6 // without a draft,
	tokenBefore   = 5 // and this one without variants
	macBytes      = 16
	Life          = 24 * time.Hour // of all pages of a feed, from its first
	MaxServed     = 10_000         // items on the pages of one feed
)

// Cursor is where a feed continues.
type Cursor struct {
	Keys     *Keys                 // that it is signed with
	Issued   millrace.Time         // with the first page
	AsOf     millrace.Time         // of every page
	Request  Identity              // what must be the same on every page
	Model    string                // of every page, whatever becomes of the feed's,
	Version  string                // and its version; empty of what every node has
	Sum      string                // and its checksum, as [broker.sumOf] writes it
	Feed     string                // the version of the feed's definition, of every page likewise; empty of one that came with the broker
	FeedSum  string                // and its checksum, as [Keys.Definition] writes it
	Variants []experiment.Assigned // of every page: what deals may have changed; without what they set
	HeldOut  []string              // layers, of every page likewise
	// Unapplied are experiments that no page counts for a variant of, since the first
	// did not.
	Unapplied []string
	Draft     *Draft             // of every page likewise; nil without one
	Divided   []experiment.Dealt // what divides the entities, of every page likewise
	Models    []Ranked           // of groups of entities, of every page likewise
	Served    []uint64           // millrace.ServedHash of every item so far, ascending
}

// Identity is of a request what must be the same on every page, as a MAC.
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

func mac(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)[:macBytes]
}

// splitToken takes a token apart into what is signed and its signature.
func splitToken(token string) (signed, sum []byte, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) <= macBytes || strings.ContainsAny(token, "\r\n") { // which base64 skips
		return nil, nil, errors.New("this is no page token")
	}
	return b[:len(b)-macBytes], b[len(b)-macBytes:], nil
}

func signed(b, sum, key []byte) bool { return hmac.Equal(sum, mac(key, b)) }

// decodeBody reads what stands before the mac.
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

// reader takes values off the front of b until one is cut short.
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

// Refuse is the refusal of a page, which can be asked for no more.
func Refuse(format string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonPageToken, Field: "page_token", Detail: fmt.Sprintf(format, args...), WayOut: "ask for the first page again, without a token"}
}

// Identify returns what a request is known by on every page: a MAC of all that
// each must ask alike. Entities, attributes and features count as sets, since
// callers keep them so: types are sorted, and entities encoded, each once, in any
// order.
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

// Definition returns by what a token names the definition of a feed that has a
// checksum. That of a private one is told to nobody, and its checksum would show a
// good guess to be one.
func (k *Keys) Definition(sum string, private bool) string {
	if !private {
		return sum
	}
	return hex.EncodeToString(mac(k.token, append([]byte("definition "), sum...)))
}

// setSum stands for a set of different things, whatever their order: the sum of
// 128 bits of SipHash-2-4 of each. Nobody can make two sets of one sum who knows
// neither the key nor a sum: so a sum goes nowhere but into a MAC.
type setSum struct {
	key    [2]uint64
	lo, hi uint64
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

// appendAttribute appends a value that [limits.CheckViewer] has passed.
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

// appendPrefixed appends a string behind its length.
func appendPrefixed(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
