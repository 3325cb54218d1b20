package pagetoken

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/interleave"
)

// ringOf has one key, of always.
func ringOf(secret []byte) *Ring {
	return NewRing(func() []secrets.Generation { return []secrets.Generation{{Secret: secret}} })
}

// secretOf is a secret that differs by its letter.
func secretOf(letter string) []byte { return []byte(strings.Repeat(letter, 32)) }

func TestHashesAreCompact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 2, 3, 20, 1000, MaxServed} {
		hashes := make([]uint64, n)
		for i := range hashes {
			hashes[i] = r.Uint64()
		}
		slices.Sort(hashes)
		b := appendHashes(nil, hashes)
		back, err := decodeHashes(b)
		if err != nil || !slices.Equal(back, hashes) {
			t.Fatalf("%d hashes: %v", n, err)
		}
		if n == 1000 && len(b) > 7100 {
			t.Errorf("1000 hashes take %d bytes", len(b))
		}
	}
	for _, hashes := range [][]uint64{{1<<64 - 1}, {0, 1<<64 - 1}, {1<<64 - 3, 1<<64 - 2, 1<<64 - 1}} {
		if back, err := decodeHashes(appendHashes(nil, hashes)); err != nil || !slices.Equal(back, hashes) {
			t.Errorf("%x came back as %x, %v", hashes, back, err)
		}
	}
}

// What docs/feeds.md says of how long tokens get: a first page's, one of a viewer in
// every layer that there may be, and the longest.
func TestTokensAreBounded(t *testing.T) {
	key, r := ringOf(secretOf("a")).Signing(time.Now()), rand.New(rand.NewPCG(1, 2))
	name, unit, sum := strings.Repeat("n", 63), strings.Repeat("u", 512), strings.Repeat("a", 64)
	for what, c := range map[string]struct {
		shown, layers int
		name, unit    string
		least, most   int
	}{
		"a first page's":    {20, 0, "home", "", 200, 600},
		"in every layer":    {20, experiment.MaxLayers, name[:20], name[:20], 10_000, 20_000},
		"the longest there": {MaxServed - 1 + 1000, experiment.MaxLayers, name, unit, 150_000, 200_000},
	} {
		full := Cursor{Issued: 1 << 41, AsOf: 1 << 41, Model: c.name, Version: c.name, Sum: sum + "+" + sum, Feed: "1234567", FeedSum: sum}
		for range c.shown {
			full.Served = append(full.Served, r.Uint64())
		}
		slices.Sort(full.Served)
		for range c.layers {
			full.Variants = append(full.Variants, experiment.Assigned{Experiment: c.name, Variant: c.name, Unit: c.unit, Checksum: sum, Probability: experiment.Probability{Slots: 10_000, Weight: 10_000}})
		}
		if n := len(full.Encode(key)); n < c.least || n > c.most {
			t.Errorf("a token %s has %d bytes, not %d to %d", what, n, c.least, c.most)
		}
	}
}

// A token of another key, or with any bit flipped, is refused.
func TestTokensAreSigned(t *testing.T) {
	now := time.Now()
	ours := ringOf(secretOf("a"))
	token := (&Cursor{Served: []uint64{1, 2, 3}}).Encode(ours.Signing(now))
	if _, err := ours.Open(token, now); err != nil {
		t.Fatal(err)
	}
	if _, err := ringOf(secretOf("b")).Open(token, now); err == nil {
		t.Error("a token of another key is taken")
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(b) {
		b[i/8] ^= 1 << (i % 8)
		if _, err := ours.Open(base64.RawURLEncoding.EncodeToString(b), now); err == nil {
			t.Errorf("bit %d of %d is flipped, and the token taken", i, 8*len(b))
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

// A page has one token: what a decoder would skip makes it none.
func TestTokensAreOfOneForm(t *testing.T) {
	now, ours := time.Now(), ringOf(secretOf("a"))
	token := (&Cursor{Served: []uint64{1, 2, 3}}).Encode(ours.Signing(now))
	for _, other := range []string{token + "\n", token[:5] + "\r" + token[5:], token[:5] + "\r\n" + token[5:], token + "=", " " + token} {
		if _, err := ours.Open(other, now); err == nil {
			t.Errorf("%q is taken for %q", other, token)
		}
	}
}

func FuzzDecodeCursor(f *testing.F) {
	ring := ringOf([]byte("0123456789abcdef"))
	key := ring.Signing(time.Now())
	for _, c := range []Cursor{{}, {Issued: 1, AsOf: 2, Request: Identity{3}, Model: "home", Feed: "3", FeedSum: "ff", Served: []uint64{5, 1 << 40, 1<<64 - 1}}} {
		raw, _ := base64.RawURLEncoding.DecodeString(c.Encode(key))
		f.Add(raw[:len(raw)-macBytes])
	}
	f.Add([]byte(strings.Repeat("\xff", 40)))
	// Whatever passes for a body is read the same after it was written again.
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := decodeBody(body)
		if err != nil {
			return
		}
		if !slices.IsSorted(c.Served) {
			t.Fatalf("hashes %x", c.Served)
		}
		back, err := ring.Open(c.Encode(key), time.Now())
		if err != nil || back.AsOf != c.AsOf || back.Model != c.Model || !slices.Equal(back.Served, c.Served) {
			t.Fatalf("%+v came back as %+v, %v", c, back, err)
		}
	})
}

// Tokens with and without variants are read as they were written.
func TestTokensKeepVariants(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	ring := ringOf([]byte("0123456789abcdef"))
	key := ring.Signing(time.Now())
	for range 200 {
		c := Cursor{AsOf: 7, Model: "m", Served: []uint64{1, 2}}
		for range r.IntN(4) {
			c.Variants = append(c.Variants, experiment.Assigned{
				Experiment: fmt.Sprint("e", r.IntN(100)), Variant: fmt.Sprint("v", r.IntN(9)), Unit: strings.Repeat("u", r.IntN(300)), Forced: r.IntN(2) == 0,
				Checksum: strings.Repeat("0a", 32), Probability: experiment.Probability{Slots: r.IntN(10_001), Weight: r.IntN(10_001)}, LifeSum: r.Uint64(),
			})
		}
		got, err := ring.Open(c.Encode(key), time.Now())
		if err == nil {
			got.Keys = nil
		}
		if err != nil || fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", c) {
			t.Fatalf("%v\n%+v\n%+v", err, got, c)
		}
	}
}

// Tokens that divide entities are read as they were written.
func TestTokensKeepDivisions(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	ring := ringOf([]byte("0123456789abcdef"))
	key := ring.Signing(time.Now())
	for range 100 {
		c := Cursor{AsOf: 7, Model: "m", Served: []uint64{1, 2}, HeldOut: []string{"h"}}
		for range 1 + r.IntN(3) {
			c.Divided = append(c.Divided, experiment.Dealt{Experiment: fmt.Sprint("e", r.IntN(100)), Share: r.IntN(10_001), Sum: r.Uint64()})
			c.Models = append(c.Models, Ranked{Names: fmt.Sprint("m", r.IntN(9)), Version: artefacts.Version{Name: "coarse", Version: fmt.Sprint(r.IntN(9))}, Plain: r.IntN(2) == 0})
		}
		body, _, err := splitToken(c.Encode(key))
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeBody(body)
		if err != nil || fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", c) {
			t.Fatalf("%v\n%+v\n%+v", err, got, c)
		}
	}
}

// A broker that knows of no key that has begun signs with the oldest.
func TestPageKeysThatAreAllToCome(t *testing.T) {
	r := NewRing(func() []secrets.Generation {
		return []secrets.Generation{{Secret: secretOf("b"), From: time.Now().Add(2 * time.Hour)}, {Secret: secretOf("a"), From: time.Now().Add(time.Hour)}}
	})
	if k := r.Signing(time.Now()); !slices.Equal(k.token, secretOf("a")) {
		t.Errorf("%q signs", k.token)
	}
}

// everyVersion is a cursor for each version of tokens, by version.
func everyVersion() map[byte]Cursor {
	base := Cursor{Issued: 1 << 41, AsOf: 1 << 40, Request: Identity{1, 15: 2}, Model: "m", Version: "3", Sum: "ff", Feed: "4", FeedSum: "ee", Served: []uint64{1, 1 << 60, 1<<64 - 1}}
	variants := base
	variants.HeldOut = []string{"h1", "h2"}
	variants.Variants = []experiment.Assigned{
		{Experiment: "e", Variant: "v", Unit: "u", Checksum: "0a0b", Probability: experiment.Probability{Slots: 10, Weight: 300}, LifeSum: 1 << 63},
		{Experiment: "f", Variant: "w", Forced: true, Checksum: "0c"},
	}
	variants.Unapplied = []string{"f"}
	held := base
	held.HeldOut = []string{"h"}
	draft := variants
	draft.Draft = &Draft{Beside: artefacts.Version{Name: "n", Version: "1", Sum: "dd"}, Next: interleave.Cursor{Seed: 1 << 62, Turns: 300}}
	divided := variants
	divided.Divided = []experiment.Dealt{{Experiment: "d", Share: 10_000, Sum: 1 << 61}, {Experiment: "e2", Share: 0, Sum: 5}}
	divided.Models = []Ranked{{Names: "m2", Version: artefacts.Version{Name: "m2", Version: "1", Sum: "cc"}, Plain: true}, {Version: artefacts.Version{Name: "m"}}}
	divided.Unapplied = []string{"f", "d"}
	return map[byte]Cursor{tokenBefore: base, tokenVariants: variants, tokenDraft: draft, tokenVersion: divided, 0: held}
}

// A token has the lowest version that holds what there is, is read as it was written, and
// nothing that is cut short or goes on is read at all.
func TestTokensOfEachVersion(t *testing.T) {
	key := ringOf(secretOf("a")).Signing(time.Now())
	for version, c := range everyVersion() {
		body, _, err := splitToken(c.Encode(key))
		if err != nil {
			t.Fatal(err)
		}
		if version == 0 {
			version = tokenVariants
		}
		got, err := decodeBody(body)
		if err != nil || body[0] != version || fmt.Sprintf("%+v %+v", got, got.Draft) != fmt.Sprintf("%+v %+v", &c, c.Draft) && c.Draft == nil || c.Draft != nil && *got.Draft != *c.Draft {
			t.Errorf("%v, version %d\n%+v\nwant %d\n%+v", err, body[0], got, version, &c)
		}
		for n := range body {
			if got, err := decodeBody(body[:n]); err == nil {
				t.Errorf("version %d: %d of %d bytes are read: %+v", version, n, len(body), got)
			}
		}
		if got, err := decodeBody(append(body, 0)); err == nil {
			t.Errorf("version %d: with a byte more it is read: %+v", version, got)
		}
		for _, other := range []byte{tokenBefore - 1, tokenVersion + 1, 0, 255} {
			body[0] = other
			if _, err := decodeBody(body[:len(body)-1]); err == nil || !strings.Contains(err.Error(), "another version") {
				t.Errorf("version %d: %v", other, err)
			}
		}
	}
}

// Counts of hashes and gaps between them that no token has are refused.
func TestDamagedHashes(t *testing.T) {
	hashes := func(n int) []uint64 {
		all := make([]uint64, n)
		for i := range all {
			all[i] = uint64(i+1) * (math.MaxUint64 / uint64(n+1))
		}
		return all
	}
	if back, err := decodeHashes(appendHashes(nil, hashes(2*MaxServed))); err != nil || len(back) != 2*MaxServed {
		t.Errorf("as many as may be: %d, %v", len(back), err)
	}
	for what, b := range map[string][]byte{
		"no count":      {0x80},
		"one too many":  appendHashes(nil, hashes(2*MaxServed+1)),
		"a vast count":  binary.AppendUvarint(nil, 1<<40),
		"beyond 64 bit": {1, 0b11000000, 0, 0, 0, 0, 0, 0, 0, 0, 0}, // the gap of a single hash has one bit above its low ones
		"they overflow": {2, 0b11101111, 255, 255, 255, 255, 255, 255, 255, 0b11110111, 255, 255, 255, 255, 255, 255, 255, 255, 255},
	} {
		if got, err := decodeHashes(b); err == nil {
			t.Errorf("%s: %x", what, got)
		}
	}
	r := bitReader{b: []byte{0b10110001, 0b01000000}}
	if a, b, c := r.read(3), r.read(7), r.left(); a != 0b101 || b != 0b1000101 || c != 6 || r.bad {
		t.Errorf("%b %b, %d left", a, b, c)
	}
	if v := r.read(7); v != 0 || !r.bad || r.read(1) != 0 {
		t.Errorf("beyond the end there is %b", v)
	}
}

// Whatever a later page may not change changes the identity of its request, whatever its
// order is does not, and a key of another secret gives another one.
func TestIdentities(t *testing.T) {
	key := ringOf(secretOf("a")).Signing(time.Now())
	request := func() *feedv1.GetFeedRequest {
		return &feedv1.GetFeedRequest{
			Feed: "f", Filter: "x", Model: "m", From: &timestamppb.Timestamp{Seconds: 1, Nanos: 2},
			Viewer: &feedv1.Viewer{Id: "v", Attributes: map[string]*structpb.Value{"a": structpb.NewStringValue("s"), "b": structpb.NewNumberValue(2)}, Features: map[string]float64{"c": 3, "d": 4}},
		}
	}
	encoded := func(all ...millrace.Entity) (b []byte) {
		for _, e := range all {
			b = partition.AppendEntity(b, partition.Of(e), e)
		}
		return b
	}
	types, entities := []string{"like", "post"}, encoded("e1", "e2")
	base := key.Identify(request(), types, entities)
	if other := ringOf(secretOf("b")).Signing(time.Now()); other.Identify(request(), types, entities) == base || base == (Identity{}) {
		t.Error("the identity is without a key")
	}
	if other := newKeys(secretOf("b")); other.Served == key.Served || key.Served == (millrace.ServedKey{}) {
		t.Error("what was served is hashed without a key")
	}
	if key.Identify(request(), types, encoded("e2", "e1")) != base {
		t.Error("the order of entities matters")
	}
	seen := map[Identity]string{base: "nothing"}
	look := func(what string, id Identity) {
		t.Helper()
		if was, again := seen[id]; again {
			t.Errorf("%s changes as much as %s", what, was)
		}
		seen[id] = what
	}
	look("a type less", key.Identify(request(), types[:1], entities))
	look("an entity less", key.Identify(request(), types, encoded("e1")))
	look("another entity", key.Identify(request(), types, encoded("e1", "e3")))
	value := func(v *structpb.Value) func(*feedv1.GetFeedRequest) {
		return func(r *feedv1.GetFeedRequest) { r.Viewer.Attributes["a"] = v }
	}
	list := func(all ...any) *structpb.Value {
		v, err := structpb.NewList(all)
		if err != nil {
			t.Fatal(err)
		}
		return structpb.NewListValue(v)
	}
	for what, change := range map[string]func(*feedv1.GetFeedRequest){
		"the feed": func(r *feedv1.GetFeedRequest) { r.Feed = "g" }, "the filter": func(r *feedv1.GetFeedRequest) { r.Filter = "y" }, "the model": func(r *feedv1.GetFeedRequest) { r.Model = "n" },
		"what is joined": func(r *feedv1.GetFeedRequest) { r.Feed, r.Viewer.Id = "fv", "" },
		"the viewer":     func(r *feedv1.GetFeedRequest) { r.Viewer.Id = "w" }, "no from": func(r *feedv1.GetFeedRequest) { r.From = nil }, "from": func(r *feedv1.GetFeedRequest) { r.From.Seconds = 2 },
		"from by little": func(r *feedv1.GetFeedRequest) { r.From.Nanos = 3 }, "to": func(r *feedv1.GetFeedRequest) { r.From, r.To = nil, r.From }, "as of": func(r *feedv1.GetFeedRequest) { r.From, r.AsOf = nil, r.From },
		"a feature": func(r *feedv1.GetFeedRequest) { r.Viewer.Features["c"] = 5 }, "features swapped": func(r *feedv1.GetFeedRequest) { r.Viewer.Features = map[string]float64{"c": 4, "d": 3} },
		"a feature less": func(r *feedv1.GetFeedRequest) { delete(r.Viewer.Features, "c") }, "an attribute less": func(r *feedv1.GetFeedRequest) { delete(r.Viewer.Attributes, "a") },
		"a text": value(structpb.NewStringValue("t")), "a number": value(structpb.NewNumberValue(1)), "another": value(structpb.NewNumberValue(2)), "true": value(structpb.NewBoolValue(true)), "false": value(structpb.NewBoolValue(false)),
		"a list": value(list("s")), "a list of more": value(list("s", "t")), "in another order": value(list("t", "s")), "of numbers": value(list(1)), "an empty one": value(list()),
	} {
		r := request()
		change(r)
		look(what, key.Identify(r, types, entities))
	}
	if plain, mac := key.Definition("ab", false), key.Definition("ab", true); plain != "ab" || len(mac) != 2*macBytes || mac == key.Definition("ac", true) {
		t.Errorf("%s, %s", plain, mac)
	}
}

// The newest key whose time has begun signs; the one before it opens tokens as long as they
// live, to the instant, and one that is none opens nothing.
func TestKeysHaveTheirTime(t *testing.T) {
	began := time.Now().Add(time.Hour)
	r := NewRing(func() []secrets.Generation {
		return []secrets.Generation{{Secret: secretOf("b"), From: began}, {Secret: secretOf("a")}}
	})
	for at, want := range map[time.Time]string{began.Add(-1): "a", began: "b", began.Add(1): "b"} {
		if k := r.Signing(at); !slices.Equal(k.token, secretOf(want)) || r.Signing(at) != k {
			t.Errorf("at %s %q signs", at, k.token)
		}
	}
	token := (&Cursor{Model: "m"}).Encode(r.Signing(began.Add(-1)))
	for at, good := range map[time.Time]bool{began: true, began.Add(Life): true, began.Add(Life + 1): false} {
		c, err := r.Open(token, at)
		if (err == nil) != good || good && (c.Model != "m" || c.Keys != r.Signing(began.Add(-1))) || !good && !strings.Contains(err.Error(), "time is over") {
			t.Errorf("at %s: %+v, %v", at, c, err)
		}
	}
	for _, bad := range []string{"", "AAAA", base64.RawURLEncoding.EncodeToString(make([]byte, macBytes)), "?" + token} {
		if _, err := r.Open(bad, began); err == nil || !strings.Contains(err.Error(), "no page token") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// One that was signed right and holds nothing.
	body := []byte{9}
	if _, err := r.Open(base64.RawURLEncoding.EncodeToString(append(body, mac(secretOf("b"), body)...)), began); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("%v", err)
	}
}
