package pagetoken

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/relevance/experiment"
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
