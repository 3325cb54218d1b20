package slot

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/twmb/murmur3"
)

// The golden vectors pin slots and draws for the life of every experiment: a
// change here reshuffles all viewers. They were computed by docs/assign.py.
func TestSlotsArePinned(t *testing.T) {
	for _, c := range []struct {
		salt, experiment, unit string
		slot, draw             int
	}{
		{"s", "e", "1", 4950, 9336},
		{"s", "e", "12", 6329, 1220},
		{"s", "e", "123", 9442, 6780},
		{"s", "e", "1234", 3970, 1643},
		{"ranking-2026", "fresher", "member:42", 4592, 5692},
		{"ranking-2026", "fresher", "member:43", 2517, 2249},
		{"ranking-2026", "fresher2", "member:42", 4592, 3067},
		{"ranking-2027", "fresher", "member:42", 5161, 9418},
		{"salt.of_layer", "exp-1", "höchst/ungewöhnlich 名", 2731, 5477},
		{"a", "b", "c/d", 9813, 4378},
		{"a", "b", strings.Repeat("x", 512), 3154, 2533},
		{strings.Repeat("z", 63), strings.Repeat("y", 63), "00000000-0000-0000-0000-000000000000", 4872, 4522},
	} {
		if got := Of(c.salt, c.unit); got != c.slot {
			t.Errorf("slot of %q under %q: %d, want %d", c.unit, c.salt, got, c.slot)
		}
		if got := Draw(c.salt, c.experiment, c.unit); got != c.draw {
			t.Errorf("draw of %q in %q under %q: %d, want %d", c.unit, c.experiment, c.salt, got, c.draw)
		}
	}
}

func TestRule(t *testing.T) {
	r, err := ReadRule([]byte(`{"experiment":"e","feeds":["home","recent"],"elsewhere":{"home":["bob","eve"]},"salt":"s","unit":"viewer","slots":[{"from":0,"to":999},{"from":5000,"to":5000}],
		"arms":[{"variant":"a","weight":0},{"variant":"b","weight":2500},{"variant":"c","weight":7500}],"forced":{"eve":"a"}}`))
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for i := range 100_000 {
		unit := string(binary.BigEndian.AppendUint32(nil, uint32(i)))
		slot, draw := Of("s", unit), Draw("s", "e", unit)
		want := ""
		switch in := slot < 1000 || slot == 5000; {
		case in && draw < 2500:
			want = "b"
		case in:
			want = "c"
		}
		got, ok := r.Assign("recent", unit)
		if got != want || ok != (want != "") {
			t.Fatalf("slot %d, draw %d: %q, want %q", slot, draw, got, want)
		}
		n[got]++
	}
	if n["b"] < 2000 || n["c"] < 7000 || n[""] < 85_000 {
		t.Errorf("%v: the test tries too little", n)
	}
	if v, ok := r.Assign("recent", "eve"); v != "a" || !ok {
		t.Errorf("a forced viewer has %q", v)
	}
	if v, ok := r.Assign("home", "eve"); ok {
		t.Errorf("who has another experiment on a feed has %q", v)
	}
	if v, ok := r.Assign("digest", "eve"); ok {
		t.Errorf("a viewer has %q of a feed that it is not on", v)
	}
	if _, ok := r.Assign("recent", ""); ok {
		t.Error("a viewer without an id has a variant")
	}
	r.Unit = "attribute country"
	if v, _ := r.Assign("recent", "eve"); v == "a" {
		t.Error("a value of an attribute is forced like a viewer")
	}
}

func TestRulesRefused(t *testing.T) {
	for _, src := range []string{
		``, `{}`, `{"slots":[{"from":5,"to":4}],"arms":[{"variant":"a","weight":10000}]}`,
		`{"slots":[{"from":0,"to":10000}],"arms":[{"variant":"a","weight":10000}]}`,
		`{"slots":[{"from":0,"to":5},{"from":5,"to":6}],"arms":[{"variant":"a","weight":10000}]}`,
		`{"arms":[{"variant":"a","weight":9999}]}`, `{"arms":[{"variant":"a","weight":-1},{"variant":"b","weight":10001}]}`,
		`{"arms":[{"variant":"b","weight":5000},{"variant":"a","weight":5000}]}`,
	} {
		if r, err := ReadRule([]byte(src)); err == nil {
			t.Errorf("%s is taken: %+v", src, r)
		}
	}
}

func BenchmarkMurmur(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = murmur3.StringSum32("ranking-2026/member:1234567")
	}
}

func BenchmarkSlot(b *testing.B) {
	p := Under("ranking-2026")
	b.ReportAllocs()
	for b.Loop() {
		_ = p.Slot("member:1234567")
	}
}
