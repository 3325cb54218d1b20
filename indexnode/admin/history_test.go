package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// The history of a timeline is what the log has of it, with what ingest makes of each entry.
func TestTheHistoryIsWhatTheLogHas(t *testing.T) {
	s, _ := openNode(t)
	k := beside(t, s, nil)
	beside := millrace.Entity("") // another of the same partition
	for i := 0; beside == ""; i++ {
		if e := millrace.Entity(fmt.Sprint("other:", i)); partition.Of(e) == here {
			beside = e
		}
	}
	var entries []*kgo.Record
	write := func(to millrace.Entity, value []byte) {
		out := kafka.ToStream(k.Topics.Timeline, to, value, kafka.Source{Topic: "posts", Partition: 2, Offset: millrace.Offset(len(entries))})
		r := out.Record()
		r.Timestamp = time.UnixMilli(base + int64(len(entries)))
		entries = append(entries, r)
	}
	line := func(line string) []byte {
		t.Helper()
		body, err := schemas.Activity().EncodeJSON([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		return schemas.Frame(schemas.Activity().Fingerprint(), body)
	}
	write("member:1", line(`{"id":"a","actor":"member:1","verb":"post","created_at":5,"version":7}`))
	write(beside, line(fmt.Sprintf(`{"id":"a","actor":%q,"verb":"post","created_at":5}`, beside)))
	write("member:1", line(`{"id":"b","actor":"member:2","verb":"like","created_at":6,"about":["member:1"],"object":"o"}`))
	write("member:1", line(`{"id":"c","actor":"member:2","verb":"like","created_at":6}`))
	write("member:1", []byte("?"))
	write("member:1", line(`{"id":"d","actor":"member:1","verb":"post","created_at":7}`))
	entries[len(entries)-1].Headers[1].Value = []byte("sum!")
	write("member:1", schemas.Frame(7, nil))
	write("member:1", schemas.Frame(schemas.Activity().Fingerprint(), []byte{1}))
	write("member:1", line(`{"id":"e","actor":"member:1","verb":"post","created_at":8,"deleted":true,"version":9}`))
	produce(t, k, entries...)
	read := func(req *nodev1.ReadHistoryRequest) (all []*nodev1.LogEntry, end *nodev1.ReadHistoryResponse) {
		t.Helper()
		stream := &sent[nodev1.ReadHistoryResponse]{ctx: t.Context()}
		if err := s.ReadHistory(req, stream); err != nil {
			t.Fatalf("%v: %v", req, err)
		}
		for _, m := range stream.all {
			all = append(all, m.Entries...)
		}
		return all, stream.all[len(stream.all)-1]
	}
	want := []struct{ offset, says, refused string }{
		{"0", "post a 5 7 a", ""}, {"2", "like b 6 0 o", ""}, {"3", "like c 6 0 c", "neither its own nor in about"}, {"4", "  0 0 ", "framing"},
		{"5", "  0 0 ", "corrupt"}, {"6", "  0 0 ", "schema 0000000000000007 is not known"}, {"7", "  0 0 ", "bad-count"}, {"8", "post e 8 9 e", ""},
	}
	all, end := read(&nodev1.ReadHistoryRequest{Entity: "member:1"})
	if len(all) != len(want) || end.First != 0 || end.End != int64(len(entries)) {
		t.Fatalf("%d entries from %d to %d", len(all), end.First, end.End)
	}
	for i, e := range all {
		r, w := e.Record, want[i]
		if fmt.Sprint(e.Offset) != w.offset || fmt.Sprint(r.Type, " ", r.Id, " ", r.TimeMs, " ", r.Version, " ", r.Object) != w.says || (e.Refused == "") != (w.refused == "") || !strings.Contains(e.Refused, w.refused) ||
			e.LoggedMs != base+e.Offset || e.Source != "posts/2/"+w.offset || (len(r.Json) > 0) != (r.Id != "") || r.Deleted != (w.offset == "8") {
			t.Errorf("entry %d is %v, want %v", i, e, w)
		}
	}
	for offsets, req := range map[string]*nodev1.ReadHistoryRequest{
		"[0 3 4 5 6 7 8]":   {Type: "post"},
		"[2 3 4 5 6 7]":     {Type: "like"},
		"[0]":               {Id: "a"},
		"[3]":               {Id: "c"},
		"[]":                {Id: "d"},
		"[7 8]":             {SinceMs: base + 7},
		"[8]":               {SinceMs: base + 8},
		"[] ":               {SinceMs: base + 9},
		"[0 2 3 4 5 6 7 8]": {SinceMs: -5},
	} {
		req.Entity = "member:1"
		all, end := read(req)
		got := []int64{}
		for _, e := range all {
			got = append(got, e.Offset)
		}
		if fmt.Sprint(got) != strings.TrimSpace(offsets) || end.End != int64(len(entries)) || end.First != max(0, req.SinceMs-base) && req.SinceMs > 0 {
			t.Errorf("%v: entries %v from %d to %d, want %s", req, got, end.First, end.End, offsets)
		}
	}
	if all, end := read(&nodev1.ReadHistoryRequest{Entity: "topic:empty"}); len(all) > 0 || end.End != 0 {
		t.Errorf("of nobody: %v, %v", all, end)
	}
	whoGoes(t, func(stream *sent[nodev1.ReadHistoryResponse]) error {
		return s.ReadHistory(&nodev1.ReadHistoryRequest{Entity: "member:1"}, stream)
	})

	entries = nil
	for i := range 4 {
		write("topic:large", line(fmt.Sprintf(`{"id":"r%d","actor":"topic:large","verb":"post","created_at":5,"text":%q}`, i, strings.Repeat("x", sentBytes/2))))
	}
	produce(t, k, entries...)
	stream := &sent[nodev1.ReadHistoryResponse]{ctx: t.Context()}
	if err := s.ReadHistory(&nodev1.ReadHistoryRequest{Entity: "topic:large"}, stream); err != nil {
		t.Fatal(err)
	}
	var pieces []int
	for _, m := range stream.all {
		pieces = append(pieces, len(m.Entries))
	}
	if !slices.Equal(pieces, []int{2, 2, 0}) {
		t.Errorf("large entries are sent in pieces of %v", pieces)
	}
	whoGoes(t, func(stream *sent[nodev1.ReadHistoryResponse]) error {
		return s.ReadHistory(&nodev1.ReadHistoryRequest{Entity: "topic:large"}, stream)
	})
}
