package packs

import (
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/relevance"
)

// Of the fields that a model reads, those are told in which no live record of a
// type has anything. 0 is something, and an empty text is nothing.
func TestWhatRecordsLack(t *testing.T) {
	a, h := open(t)
	nodetest.Lines(t, h)
	spec := strings.Replace(nodetest.LikesSpec, "{likes: record.likes,", "{likes: record.likes + size(record.about), text: size(record.text), object: size(record.object),", 1)
	spec = strings.Replace(spec, "{likes: 1,", "{likes: 1, text: 1, object: 1,", 1)
	row := `{"features":{"likes":2,"text":1,"object":2,"followers":1,"taste":1,"verb":"post"},"score":8,"record":{"likes":1,"about":["a"],"text":"x","object":"ob","verb":"post"},"entity":{"followers":1},"viewer":{"taste":1}}`
	id, err := nodetest.PackOf(t, spec, row, relevance.ShippedSchemas()).Admit(a.cfg.Models, strings.Repeat("a", 64), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	m, err := a.cfg.Models.Find(id)
	if err != nil {
		t.Fatal(err)
	}
	f := a.Follow(newPublished(), never)
	lacks := f.lacksOf(t.Context(), id, m)
	if len(lacks) != 2 || lacks[0].Type != "like" || lacks[0].Records != 1 || lacks[1].Type != "post" || lacks[1].Records != 2 {
		t.Fatalf("%+v", lacks)
	}
	for _, l := range lacks { // likes of the like are 0, verb is everywhere
		if want := []string{"about", "text"}; !slices.Equal(l.Fields, want) {
			t.Errorf("%s lacks %v, want %v", l.Type, l.Fields, want)
		}
	}
}
