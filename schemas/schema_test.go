package schemas

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/column"
)

const activityLine = `{"id":"a1","actor":"member:42","verb":"post","created_at":"2026-01-02T03:04:05.678Z",
 "object":"article:7","about":["member:7","group:9"],"version":3,"language":"en","country":"Switzerland","text":"a text that is longer than a word",
 "likes":12,"comments":300,"features":[0.5,1.25,-3]}`

func TestShipped(t *testing.T) {
	for _, s := range []*Schema{Activity(), Note(), Features()} {
		t.Log(s.Name(), s.Fingerprint(), s.Layout().Fields())
	}
}

func TestActivity(t *testing.T) {
	s := Activity()
	body, err := s.EncodeJSON([]byte(activityLine))
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Envelope(body)
	if err != nil {
		t.Fatal(err)
	}
	if e.Entity != "member:42" || e.Type != "post" || e.Record.ID != "a1" || e.Record.Object != "article:7" ||
		e.Record.Version != 3 || e.Record.Deleted || e.Record.Time != 1767323045678 || len(e.About) != 2 {
		t.Fatalf("envelope %+v", e)
	}
	d, err := NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(s.Layout(), 1, 0).Append()
	for range 3 {
		if err := d.Append(a, body); err != nil {
			t.Fatal(err)
		}
	}
	slab := a.Slab()
	l := s.Layout()
	text := slab.String(slab.Word(l.Index("text"), 2))
	if text != "a text that is longer than a word" {
		t.Fatalf("text %q", text)
	}
	if got := slab.Doubles(nil, slab.Word(l.Index("features"), 1)); !slices.Equal(got, []float64{0.5, 1.25, -3}) {
		t.Fatal(got)
	}
	if got := slab.Strings(nil, slab.Word(l.Index("about"), 1)); !slices.Equal(got, []string{"member:7", "group:9"}) {
		t.Fatal(got)
	}
	if got := slab.String(slab.Word(l.Index(BodyColumn), 2)); got != string(body) {
		t.Fatal(got)
	}
	v, err := s.JSONValue(body)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(v)
}
