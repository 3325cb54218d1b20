package feeds

import (
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/fanout"
)

// Entries are written entity, type, and place in rank order.
func TestSpacing(t *testing.T) {
	for _, c := range []struct {
		s        Spacing
		in, want string
	}{
		{Spacing{}, "ap1 ap2 ap3", "ap1 ap2 ap3"},
		{Spacing{Entity: 1}, "ap1 ap2 bp3 cp4", "ap1 bp3 ap2 cp4"},
		{Spacing{Entity: 2}, "ap1 ap2 bp3 cp4 ap5", "ap1 bp3 cp4 ap2 ap5"},
		{Spacing{Type: 1}, "ap1 bp2 cp3 dl4 el5", "ap1 dl4 bp2 el5 cp3"},
		{Spacing{Entity: 1, Type: 1}, "ap1 al2 bp3 bl4", "ap1 bl4 al2 bp3"},
		{Spacing{Entity: 10}, "ap1 ap2", "ap1 ap2"},
		{Spacing{Entity: 1}, "", ""},
	} {
		var entries []fanout.Entry
		for _, w := range strings.Fields(c.in) {
			entries = append(entries, fanout.Entry{Rank: millrace.Rank{
				ID: millrace.RecordID(w), Timeline: millrace.Timeline{Entity: millrace.Entity(w[:1]), Type: millrace.ContentType(w[1:2])}}})
		}
		c.s.Apart(entries)
		var got []string
		for _, e := range entries {
			got = append(got, string(e.ID))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v of %q: got %v, want %q", c.s, c.in, got, c.want)
		}
	}
}
