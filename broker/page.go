package broker

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
	"slices"
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
//	body     see cursor.encode
//	mac      16 bytes: HMAC-SHA-256 of what is before it, cut
//
// in base64 for URLs, without padding.
const (
	tokenVersion  = 8 // which divides entities, and has no draft; a page that does not has
	tokenDraft    = 7 // yet, or
	tokenVariants = 6 // without a draft,
	tokenBefore   = 5 // and this one without variants
	macBytes      = 16
	TokenLife     = 24 * time.Hour // of all pages of a feed, from its first
	maxServed     = 10_000         // items on the pages of one feed
)

// cursor is where a feed continues.
type cursor struct {
	keys     *pageKeys             // that it is signed with
	issued   millrace.Time         // with the first page
	asOf     millrace.Time         // of every page
	request  identity              // what must be the same on every page
	model    string                // of every page, whatever becomes of the feed's,
	version  string                // and its version; empty of what every node has
	sum      string                // and its checksum, as [sumOf] writes it
	feed     string                // the version of the feed's definition, of every page likewise; empty of one that came with the broker
	feedSum  string                // and its checksum, as [pageKeys.definition] writes it
	variants []experiment.Assigned // of every page: what deals may have changed; without what they set
	heldOut  []string              // layers, of every page likewise
	// unapplied are experiments that no page counts for a variant of, since the first
	// did not.
	unapplied []string
	draft     *draft             // of every page likewise; nil without one
	divided   []experiment.Dealt // what divides the entities, of every page likewise
	models    []rankedFor        // of groups of entities, of every page likewise
	served    []uint64           // millrace.ServedHash of every item so far, ascending
}

// identity is of a request what must be the same on every page, as a MAC.
type identity [16]byte

func (c *cursor) encode(key []byte) string {
	version := byte(tokenVersion)
	switch {
	case len(c.divided) > 0:
	case len(c.variants)+len(c.heldOut) == 0:
		version = tokenBefore
	case c.draft == nil:
		version = tokenVariants
	default:
		version = tokenDraft
	}
	b := []byte{version}
	b = binary.AppendUvarint(b, uint64(c.issued))
	b = binary.AppendUvarint(b, uint64(c.asOf))
	b = append(b, c.request[:]...)
	for _, s := range []string{c.model, c.version, c.sum, c.feed, c.feedSum} {
		b = appendPrefixed(b, s)
	}
	if version >= tokenVariants {
		b = appendVariants(b, c.variants, c.heldOut, c.unapplied)
	}
	switch version {
	case tokenDraft:
		b = appendDraft(b, c.draft)
	case tokenVersion:
		b = appendDivision(b, c.divided, c.models, c.unapplied)
	}
	b = appendHashes(b, c.served)
	return base64.RawURLEncoding.EncodeToString(append(b, mac(key, b)...))
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
func decodeBody(b []byte) (*cursor, error) {
	r := reader{b: b}
	v := r.bytes(1)
	if r.bad || v[0] < tokenBefore || v[0] > tokenVersion {
		return nil, errors.New("it is of another version")
	}
	c := &cursor{issued: millrace.Time(r.uvarint()), asOf: millrace.Time(r.uvarint())}
	copy(c.request[:], r.bytes(uint64(len(c.request))))
	for _, s := range []*string{&c.model, &c.version, &c.sum, &c.feed, &c.feedSum} {
		*s = string(r.bytes(r.uvarint()))
	}
	if v[0] >= tokenVariants {
		c.variants, c.heldOut, c.unapplied = readVariants(&r)
	}
	switch v[0] {
	case tokenDraft:
		c.draft = readDraft(&r)
	case tokenVersion:
		var unapplied []string
		c.divided, c.models, unapplied = readDivision(&r)
		c.unapplied = append(c.unapplied, unapplied...)
	}
	if r.bad {
		return nil, errors.New("it ends too soon")
	}
	var err error
	c.served, err = decodeHashes(r.b)
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

func badToken(format string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonPageToken, Field: "page_token", Detail: fmt.Sprintf(format, args...), WayOut: "ask for the first page again, without a token"}
}

// cursorOf returns where the request's token says that it continues; nil for a
// first page.
func (b *Broker) cursorOf(req *feedv1.GetFeedRequest, now time.Time) (*cursor, error) {
	if req.GetPageToken() == "" {
		return nil, nil
	}
	c, err := b.pages.open(req.GetPageToken(), now)
	if err != nil {
		return nil, badToken("%v", err)
	}
	return c, nil
}

// readPage continues where the request's token says; c is nil for a first page.
func (b *Broker) readPage(q *question, req *feedv1.GetFeedRequest, c *cursor, now time.Time) error {
	if q.keys = b.pages.signing(now); c != nil {
		q.keys = c.keys
	}
	q.request, q.issued = q.keys.identify(req, q), millrace.TimeOf(now)
	switch {
	case c == nil:
		return nil
	case c.request != q.request:
		return badToken("it is of another request: all but page_token, limit, fields, receipt and explain must be as they were")
	case now.Sub(c.issued.Std()) > TokenLife:
		return badToken("it expired %s after %s", TokenLife, c.issued)
	case len(c.served) >= maxServed:
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "page_token", Detail: fmt.Sprintf("%d items have been served", len(c.served)), WayOut: "begin anew with a window further back (to)"}
	}
	q.query.Exclude, q.query.ServedKey = c.served, q.keys.served[:] // first: a refusal too is known to be of a later page
	if err := b.keepModel(q, c); err != nil {
		return err
	}
	q.issued = c.issued
	return readTimes(q, req, c.asOf.Std())
}

// identify returns what a request is known by on every page: a MAC of all that
// each must ask alike. Entities, attributes and features count as sets, since
// callers keep them so.
func (k *pageKeys) identify(req *feedv1.GetFeedRequest, q *question) (id identity) {
	b := make([]byte, 0, 512)
	for _, s := range []string{req.GetFeed(), q.viewer, req.GetFilter(), req.GetModel()} {
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
	for _, t := range q.query.GetTypes() {
		b = appendPrefixed(b, t)
	}
	entities, attributes, features := k.set(), k.set(), k.set()
	for rest := q.groups[0].encoded; len(rest) > 0; { // which are not divided yet
		var e []byte
		e, rest = partition.CutEntity(rest)
		entities.add(e)
	}
	room := make([]byte, 0, 256)
	for name, value := range req.GetViewer().GetAttributes() {
		attributes.add(appendAttribute(appendPrefixed(room, name), value))
	}
	for name, x := range req.GetViewer().GetFeatures() {
		features.add(binary.LittleEndian.AppendUint64(appendPrefixed(room, name), math.Float64bits(x)))
	}
	b = features.append(attributes.append(entities.append(b)))
	copy(id[:], mac(k.request, b))
	return id
}

// definition returns by what a token names the definition of a feed. That of a
// private one is told to nobody, and its checksum would show a good guess to be
// one.
func (k *pageKeys) definition(f *Feed) string {
	if !f.Private {
		return f.edition.Sum
	}
	return hex.EncodeToString(mac(k.token, append([]byte("definition "), f.edition.Sum...)))
}

// setSum stands for a set of different things, whatever their order: the sum of
// 128 bits of SipHash-2-4 of each. Nobody can make two sets of one sum who knows
// neither the key nor a sum: so a sum goes nowhere but into a MAC.
type setSum struct {
	key    [2]uint64
	lo, hi uint64
}

func (k *pageKeys) set() setSum { return setSum{key: k.sets} }

func (s *setSum) add(one []byte) {
	lo, hi := siphash.Hash128(s.key[0], s.key[1], one)
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi, _ = bits.Add64(s.hi, hi, carry)
}

func (s *setSum) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, s.lo), s.hi)
}

// appendAttribute appends a value that [limits.checkAttribute] has passed.
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

// nextToken returns the token of the page behind these entries; "" when there
// is none. A page that is short because partitions are missing may have a
// sequel: what they hold. So has a drafted one that is short for the cap.
func (b *Broker) nextToken(q *question, entries []entry, complete bool) string {
	complete = complete && !(q.draft != nil && q.draft.left)
	if len(entries) == 0 || complete && len(entries) < int(q.query.Limit) {
		return ""
	}
	distinct := q.query.DistinctObjects
	served := slices.Clone(q.query.Exclude)
	for i := range entries {
		e := &entries[i]
		served = append(served, millrace.ServedHash(q.keys.served, distinct, millrace.Object(e.item.GetObject()), e.Timeline, e.ID))
	}
	slices.Sort(served)
	c := cursor{
		issued: q.issued, asOf: q.asOf, request: q.request, model: q.query.Model, version: q.query.ModelVersion, sum: sumOf(q.query.ModelSum, q.query.WeightsSum),
		feed: q.feed.edition.Version, feedSum: q.keys.definition(&q.feed), variants: q.variants.dealt, heldOut: q.variants.heldOut, draft: q.draft, served: slices.Compact(served),
		divided: q.variants.division.Dealt(), models: q.models(), unapplied: b.unapplied(q),
	}
	return c.encode(q.keys.token)
}
