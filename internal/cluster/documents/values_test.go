package documents

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

// world is a kind of documents without an etcd, and what it logs.
func world(revision int64, by ...Document) (*Kind, *strings.Builder) {
	log, docs := &strings.Builder{}, map[string]Document{}
	for _, d := range by {
		docs[d.Name] = d
	}
	return &Kind{
		c: &cluster.Client{}, kind: "feeds", state: keyspace.NewLatest(documents{by: docs, revision: revision, heard: revision}), log: slog.New(slog.NewTextHandler(log, nil)),
		origin: keyspace.Origin{Cluster: 1, Revision: revision, Keyspace: keyspace.Name{Generation: 1, ID: "a"}},
	}, log
}

// found is what etcd has at a revision: bodies by name, each with its version.
func found(revision int64, values map[string]keyspace.Value) *keyspace.Snapshot {
	return &keyspace.Snapshot{Cluster: 1, Revision: revision, Count: "720", Keyspace: keyspace.Name{Generation: 1, ID: "a"}, Values: values, Fits: func(int) error { return nil }}
}

func value(body string, version int64) keyspace.Value {
	return keyspace.Value{Data: []byte(body), Version: version}
}

// A snapshot is taken over with all that it says: what is new, what is gone, what cannot be
// read, and at which revision all was good.
func TestApply(t *testing.T) {
	home := Document{"home", "mine", 7}
	for _, c := range []struct {
		name     string
		s        *keyspace.Snapshot
		change   func(*keyspace.Snapshot)
		changed  bool   // documents have changed
		by       string // the documents
		revision int64
		fault    string
	}{
		{"nothing new", found(12, map[string]keyspace.Value{"home": value("mine", 7)}), nil, false, "home=mine@7", 12, ""},
		{"another body", found(12, map[string]keyspace.Value{"home": value("theirs", 11)}), nil, true, "home=theirs@11", 12, ""},
		{"one more", found(12, map[string]keyspace.Value{"home": value("mine", 7), "a": value("x", 12)}), nil, true, "a=x@12 home=mine@7", 12, ""},
		{"none", found(12, nil), nil, true, "", 12, ""},
		{"a name that is none", found(12, map[string]keyspace.Value{"home": value("mine", 7), "a/b": value("x", 9)}), nil, false, "home=mine@7", 10, "is left out"},
		{"of before a restoration", found(12, map[string]keyspace.Value{"home": value("theirs", 13)}), nil, true, "home=theirs@0", 12, ""},
		{"one that cannot be read", found(12, map[string]keyspace.Value{"home": value("mine", 7)}), func(s *keyspace.Snapshot) { s.Unread, s.Fault = []string{"big"}, errors.New("too big") }, false, "home=mine@7", 10, "too big"},
		{"nothing of the cluster", found(12, nil), func(s *keyspace.Snapshot) { s.Count = "" }, false, "home=mine@7", 10, keyspace.ErrGone.Error()},
		{"another etcd", found(12, nil), func(s *keyspace.Snapshot) { s.Cluster = 2 }, false, "home=mine@7", 10, keyspace.ErrForeign.Error()},
		{"restored without it", found(12, nil), func(s *keyspace.Snapshot) { s.Keyspace = keyspace.Name{Generation: 2, ID: "b"} }, true, "", 12, ""},
		{"forked, in another keyspace", found(12, map[string]keyspace.Value{"home": value("old", 3)}), func(s *keyspace.Snapshot) { s.Forked, s.Keyspace = true, keyspace.Name{Generation: 2, ID: "b"} }, true, "home=old@3", 12, ""},
	} {
		d, log := world(10, home)
		changed := d.Changed()
		if c.change != nil {
			c.change(c.s)
		}
		if got := d.apply(c.s, newestOf(c.s), nil); got != c.changed {
			t.Errorf("%s: changed is %v", c.name, got)
		}
		docs, revision, fault := d.AsOf()
		var all []string
		for _, name := range slices.Sorted(maps.Keys(docs)) {
			all = append(all, fmt.Sprintf("%s=%s@%d", name, docs[name].Body, docs[name].Version))
		}
		by := strings.Join(all, " ")
		if c.fault == "" && !c.changed && revision == 10 { // the state stays as it was, and ReadAt moves on
			revision = d.ReadAt()
		}
		if by != c.by || revision != c.revision || (fault == nil) != (c.fault == "") || fault != nil && !strings.Contains(fault.Error(), c.fault) {
			t.Errorf("%s: %s at %d, %v; want %s at %d, %q", c.name, by, revision, fault, c.by, c.revision, c.fault)
		}
		if (d.ReadAt() == 12) != (c.fault == "") {
			t.Errorf("%s: read at %d", c.name, d.ReadAt())
		}
		if fault != nil && !strings.Contains(log.String(), "serving the last good documents") {
			t.Errorf("%s: the log does not tell: %s", c.name, log)
		}
		if !slices.Equal(d.Unread(), c.s.Unread) || d.Generation() != d.origin.Keyspace.Generation {
			t.Errorf("%s: unread %q, generation %d", c.name, d.Unread(), d.Generation())
		}
		select {
		case <-changed:
		default:
			if c.changed || c.fault != "" {
				t.Errorf("%s: nobody is told", c.name)
			}
		}
		// Once more: the same fault is not logged again, and nobody is woken.
		log.Reset()
		c.s.Forked = false
		changed = d.Changed()
		if d.apply(c.s, newestOf(c.s), nil) || log.Len() > 0 {
			t.Errorf("%s, again: %s", c.name, log)
		}
		select {
		case <-changed:
			t.Errorf("%s, again: all are woken", c.name)
		default:
		}
	}
	d, log := world(10, home)
	if d.apply(nil, 0, errors.New("away")) || d.Fault() == nil || d.Current()["home"] != home || d.ReadAt() != 0 || !strings.Contains(log.String(), "away") {
		t.Errorf("away: %v, %v", d.Current(), d.Fault())
	}
	d, _ = world(10, home)
	d.apply(found(12, map[string]keyspace.Value{"home": value("mine", 7), "a/b": value("x", 11)}), 11, nil)
	if docs, newest, fault := d.Heard(); len(docs) != 1 || newest != 11 || fault == nil {
		t.Errorf("heard of %d, %v", newest, fault)
	}
	d, _ = world(10, home)
	d.apply(found(12, map[string]keyspace.Value{"home": value("mine", 7)}), 11, nil) // a document was removed, of which nothing was known
	if _, newest, _ := d.Heard(); newest != 11 {
		t.Errorf("heard of %d", newest)
	}
}

// A restoration that did not bring back what was kept is told, with what serves of an
// artefact, unless the artefact has gone on since.
func TestWhatARestorationGivesUpIsTold(t *testing.T) {
	l := &ledger.Ledger{}
	l.Publish(ledger.Edition{Version: "1", Sum: strings.Repeat("a", 64), Bytes: 1}, func(ledger.Edition) ledger.Care { return 0 }, "ann")
	l.Serve(l.Versions[0], "ann")
	body := func(l *ledger.Ledger) string {
		b, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	kept, other := body(l), body(&ledger.Ledger{})
	l.Note(ledger.Failed, l.Versions[0], "bob")
	for _, c := range []struct{ kept, now, want string }{
		{"a", "a", ""}, {"a", "b", "name=home revision=7\n"}, {"a", "", "name=home revision=7\n"},
		{kept, "", `name=home revision=7 serves="version 1" changed=`}, {kept, other, "by=ann\n"}, {kept, body(l), ""}, {body(l), kept, "by=bob\n"}, {kept, "b", "by=ann\n"},
	} {
		d, log := world(10, Document{"home", c.kept, 7})
		s := found(12, nil)
		s.Keyspace = keyspace.Name{Generation: 2, ID: "b"}
		if c.now != "" {
			s.Values = map[string]keyspace.Value{"home": value(c.now, 11)}
		}
		d.apply(s, 11, nil)
		if got := log.String(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%.40q, and now %.40q: %s, want %q", c.kept, c.now, got, c.want)
		}
	}
	d, log := world(0)
	d.origin = keyspace.Origin{}
	d.apply(found(12, nil), 0, nil)
	if log.Len() > 0 {
		t.Errorf("a process that knew nothing gives up: %s", log)
	}
}

// What documents say of what is newest, lacking, or older.
func TestVersionsOfDocuments(t *testing.T) {
	s := found(10, map[string]keyspace.Value{"a": value("", 3), "b": value("", 10), "restored": value("", 11)})
	if newestOf(s) != 10 || newestOf(nil) != 0 {
		t.Errorf("the newest is %d", newestOf(s))
	}
	of := func(versions map[string]int64) map[string]Document {
		all := map[string]Document{}
		for name, v := range versions {
			all[name] = Document{Name: name, Version: v}
		}
		return all
	}
	for _, c := range []struct {
		has   map[string]int64
		older bool
		lacks cluster.Kept
	}{
		{map[string]int64{"a": 3, "b": 10}, false, cluster.Kept{}},
		{map[string]int64{"a": 4}, true, cluster.Kept{Name: "a", Revision: 4}},
		{map[string]int64{"a": 2}, false, cluster.Kept{Name: "a", Revision: 2}},
		{map[string]int64{"a": 2, "b": 9, "c": 5}, false, cluster.Kept{Name: "b", Revision: 9}},
		{map[string]int64{"c": 5}, false, cluster.Kept{Name: "c", Revision: 5}},
		{map[string]int64{"c": 0}, false, cluster.Kept{}},
	} {
		if Older(of(c.has), s) != c.older || NewestLacked(of(c.has), s) != c.lacks {
			t.Errorf("%v: older %v, lacks %+v", c.has, !c.older, NewestLacked(of(c.has), s))
		}
	}
	if n := sizeOf(map[string]Document{"ab": {Body: "123"}, "c": {}}); n != 6 {
		t.Errorf("they take %d bytes", n)
	}
	// What shows without a call whether an etcd has another past.
	d, _ := world(10)
	docs := map[string]Document{"a": {"a", "x", 5}, "b": {"b", "y", 3}}
	for _, c := range []struct {
		docs map[string]Document
		s    *keyspace.Snapshot
		from string
		want bool
	}{
		{docs, found(10, map[string]keyspace.Value{"a": value("x", 5)}), "a", false},
		{docs, found(10, map[string]keyspace.Value{"a": value("z", 5)}), "a", true},
		{docs, found(10, map[string]keyspace.Value{"a": value("z", 5)}), "b", false},
		{map[string]Document{"a": {"a", "x", 0}}, found(10, map[string]keyspace.Value{"a": value("z", 0)}), "a", false},
		{nil, found(10, nil), "a", false},
	} {
		if got, err := d.ForkedFrom(t.Context(), c.docs, keyspace.Origin{Keyspace: keyspace.Name{Generation: 1, ID: c.from}}, c.s); err != nil || got != c.want {
			t.Errorf("%v in %v: %v, %v", c.docs, c.s.Values, got, err)
		}
	}
	d, _ = world(10, docs["a"])
	d.origin.Back = 9
	if got, err := d.forked(t.Context(), found(10, map[string]keyspace.Value{"a": value("z", 5)})); got || err != nil {
		t.Errorf("it is known already: %v, %v", got, err)
	}
}

// The line of a document in parts, and how many there are at the bounds.
func TestPartsLine(t *testing.T) {
	const most = keyspace.MaxDocumentBytes
	for bytes, want := range map[int]int{1: 1, most: 1, most + 1: 2, 2 * most: 2, keyspace.MaxPartedBytes: 32} {
		if got := PartCount(bytes); got != want {
			t.Errorf("%d bytes take %d parts", bytes, got)
		}
	}
	body := bytes.Repeat([]byte("x"), most+1)
	p := partsOf(body)
	if got, ok := parseParts(p.line()); !ok || got != p || p.count != 2 || p.bytes != most+1 || len(p.sum) != 64 {
		t.Errorf("%q is read as %+v, %v", p.line(), got, ok)
	}
	for line, good := range map[string]bool{
		"millrace parts 1 1 1 x": true, "millrace parts 1 0 0 x": false, "millrace parts 1 2 1 x": false, "millrace parts 1 1": false, "home": false,
		"millrace parts 1 32 33554432 x": true, "millrace parts 1 33 33554433 x": false,
	} {
		if _, ok := parseParts(line); ok != good {
			t.Errorf("%q: %v", line, ok)
		}
	}
	for data, want := range map[string]bool{string(body): true, p.line(): true, partsOf([]byte("other")).line(): false, "other": false} {
		if HoldsBody([]byte(data), string(body)) != want {
			t.Errorf("%.80q holds the body: %v", data, !want)
		}
	}
}

// Of the documents in a snapshot, those that cannot be read are as they were before, and
// those that have not changed are not read.
func TestJoinKeepsWhatItKnows(t *testing.T) {
	same, big := strings.Repeat("s", keyspace.MaxDocumentBytes+1), strings.Repeat("b", keyspace.MaxDocumentBytes+1)
	d, _ := world(10, Document{"same", same, 5}, Document{"big", "small", 4})
	line := partsOf([]byte(same)).line()
	s := found(12, map[string]keyspace.Value{"same": value(line, 5), "big": value(big, 9), "new": value(big, 10), "plain": value(strings.Repeat("p", keyspace.MaxDocumentBytes), 3)})
	var room []int
	s.Fits = func(n int) error { room = append(room, n); return nil }
	size := s.Size()
	if err := d.join(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	_, unknown := s.Values["new"]
	if string(s.Values["same"].Data) != same || s.Values["same"].Version != 5 || string(s.Values["big"].Data) != "small" || s.Values["big"].Version != 4 || unknown {
		t.Errorf("joined: %d bytes @%d, %.20q @%d, %v", len(s.Values["same"].Data), s.Values["same"].Version, s.Values["big"].Data, s.Values["big"].Version, unknown)
	}
	if !slices.Equal(s.Unread, []string{"big", "new"}) || s.Fault == nil || strings.Count(s.Fault.Error(), "in one piece are more than") != 2 || !strings.Contains(s.Fault.Error(), "cluster: feeds big: ") {
		t.Errorf("unread %q: %v", s.Unread, s.Fault)
	}
	if want := size + len(same) - len(line); !slices.Equal(room, []int{want}) {
		t.Errorf("asked for room of %v, want %d", room, want)
	}
	full := errors.New("full")
	s.Fits = func(int) error { return full }
	if err := d.join(t.Context(), s); !errors.Is(err, full) {
		t.Errorf("no room: %v", err)
	}
	// There is room for the rest, and none for one that is in parts and has changed.
	s = found(12, map[string]keyspace.Value{"same": value(line, 6), "x": value("1", 2)})
	room = nil
	s.Fits = func(n int) error {
		if room = append(room, n); len(room) > 1 {
			return full
		}
		return nil
	}
	if err := d.join(t.Context(), s); err != nil || !errors.Is(s.Fault, full) || s.Values["same"].Version != 5 {
		t.Errorf("no room for it: %v, %v", err, s.Fault)
	}
	if want := []int{len("same") + len(line) + 2, len("same") + len(same) + 2}; !slices.Equal(room, want) {
		t.Errorf("asked for room of %v, want %v", room, want)
	}
}

// The bytes of a version are read if they are those of the version, and what is on disk is
// read as it was kept.
func TestFilesOfDocuments(t *testing.T) {
	dir := t.TempDir()
	e := ledger.Edition{Version: "1", Sum: Checksum([]byte("body")), Bytes: 4}
	file := BodyFile(dir, "models", e.Sum)
	if want := filepath.Join(dir, "bodies-models", e.Sum); file != want {
		t.Errorf("the file is %s, want %s", file, want)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadBody(file, e); !errors.Is(err, os.ErrNotExist) || OnDisk(file, e) {
		t.Errorf("no file: %v", err)
	}
	for body, want := range map[string]string{"body": "", "bodi": "another checksum", "bodyy": "has 5 bytes, not 4"} {
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadBody(file, e)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && string(got) != body || OnDisk(file, e) != (len(body) == 4) {
			t.Errorf("%q: %q, %v, on disk %v", body, got, err, OnDisk(file, e))
		}
	}
	for body, good := range map[string]bool{`{"origin":{"revision":3},"documents":{"home":{"body":"YQ==","version":7}}}`: true, "{": false} {
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFile(file); (err == nil) != good || good && (got.Origin.Revision != 3 || got.Documents["home"] != Document{"home", "a", 7}) {
			t.Errorf("%s is read as %+v, %v", body, got, err)
		}
	}
	if _, err := ReadFile(file + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := loadDocs(&cluster.Client{}, "feeds"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// Names that are none are refused before a call.
func TestDocumentsWithoutEtcd(t *testing.T) {
	if _, err := Watch(t.Context(), &cluster.Client{}, "../x"); err == nil {
		t.Error("a kind that is none is watched")
	}
	d, _ := world(10)
	if _, _, err := d.Prepare(t.Context(), "../x", nil); err == nil || !strings.Contains(err.Error(), "is not an id") {
		t.Errorf("a name that is none: %v", err)
	}
	if d.Name() != "feeds" || Prefix("feeds") != "docs/feeds/" || !strings.HasSuffix(d.Key("home"), "docs/feeds/home") {
		t.Errorf("it is called %s, with keys such as %s", d.Name(), d.Key("home"))
	}
}
