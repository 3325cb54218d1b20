package restoration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/topology"
)

var first, second = keyspace.Name{Generation: 1, ID: "aaaaaaaa11111111"}, keyspace.Name{Generation: 2, ID: "aaaaaaaa22222222"}

// artefact is a ledger whose versions have served one after the other.
func artefact(t *testing.T, versions ...string) (*ledger.Ledger, string) {
	t.Helper()
	l := &ledger.Ledger{}
	for _, v := range versions {
		e := edition(v)
		l.Publish(e, func(ledger.Edition) ledger.Care { return ledger.Spared }, "ann")
		l.Serve(e, "ann")
	}
	body, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return l, body
}

func edition(version string) ledger.Edition {
	return ledger.Edition{Version: version, Sum: documents.Checksum([]byte(version)), Bytes: 1}
}

// found is what etcd has of documents, by kind/name.
func found(k keyspace.Name, revision int64, docs map[string]documents.Document) *keyspace.Snapshot {
	s := &keyspace.Snapshot{Keyspace: k, Revision: revision, Values: map[string]keyspace.Value{"secrets/pages": {}}}
	for of, d := range docs {
		s.Values[cluster.DocsPrefix+of] = keyspace.Value{Data: []byte(d.Body), Version: d.Version}
	}
	return s
}

// What becomes of each document: it is brought back, or stays as etcd has it, and who restores
// is told which.
func TestPlans(t *testing.T) {
	_, one := artefact(t, "9")
	l, _ := artefact(t, "1")
	l.Publish(edition("2"), func(ledger.Edition) ledger.Care { return ledger.Spared }, "bob")
	l.Serve(edition("2"), "bob")
	two, _ := l.Encode()
	back := l.Clone()
	back.Rollback("cat")
	undone, _ := back.Encode()
	keeps := func(revision int64, docs ...documents.Document) documents.LastGood {
		by := map[string]documents.Document{}
		for _, d := range docs {
			by[d.Name] = d
		}
		return documents.LastGood{Origin: keyspace.Origin{Keyspace: first, Revision: revision}, Documents: by, Dir: "dir"}
	}
	at := func(body string, version int64) documents.Document {
		return documents.Document{Body: body, Version: version}
	}
	k := kept{docs: map[string][]documents.LastGood{"feeds": {
		keeps(8, documents.Document{Name: "old", Body: "x", Version: 1}),
		keeps(20, documents.Document{Name: "gone", Body: "kept", Version: 9}, documents.Document{Name: "same", Body: "same", Version: 9}, documents.Document{Name: "older", Body: "kept", Version: 9},
			documents.Document{Name: "newer", Body: "kept", Version: 9}, documents.Document{Name: "undone", Body: undone, Version: 9}, documents.Document{Name: "served", Body: undone, Version: 9}),
	}}}
	have := found(first, 15, map[string]documents.Document{
		"feeds/same": at("same", 3), "feeds/older": at("of the backup", 3), "feeds/newer": at("theirs", 12), "feeds/undone": at(two, 12), "feeds/served": at(one, 12), "feeds/again": at("x", 4), "feeds/more": at("x", 22), "models/m": at("x", 4), "feeds/../x": at("", 1),
	})
	var r Restored
	plans := k.plans(have, &r)
	var got []string
	for _, p := range plans {
		got = append(got, fmt.Sprintf("%s %v %v", p.id(), p.put, p.there))
	}
	if want := []string{"feeds again false true", "feeds gone true false", "feeds more false true", "feeds newer false true", "feeds older true true", "feeds same false true", "feeds served false true", "feeds undone true true", "models m false true"}; !slices.Equal(got, want) {
		t.Errorf("planned %q, want %q", got, want)
	}
	if !slices.Equal(r.Again, []string{"feeds again"}) || len(r.Unsure) > 0 {
		t.Errorf("again %q, unsure %q", r.Again, r.Unsure)
	}
	slices.Sort(r.Stays)
	if !slices.Equal(r.Stays, []string{"feeds newer", "feeds served"}) || len(r.Serves) != 1 || r.Serves["feeds served"] != (Pointers{Now: "version 9", Kept: "version 1"}) {
		t.Errorf("stay %q, which serve %v", r.Stays, r.Serves)
	}
	for _, p := range plans {
		if body := map[string]string{"feeds newer": "theirs", "feeds gone": "kept", "feeds older": "kept", "models m": "x"}[p.id()]; body != "" && p.doc.Body != body {
			t.Errorf("%s is planned as %q", p.id(), p.doc.Body)
		}
		if dir := p.dir; (dir == "dir") != (p.id() != "feeds again" && p.id() != "feeds more" && p.id() != "models m") {
			t.Errorf("%s comes from %q", p.id(), dir)
		}
	}
	// A keyspace of others: which is newer cannot be told.
	r = Restored{}
	other := found(keyspace.Name{Generation: 3, ID: "bbbbbbbb33333333"}, 15, map[string]documents.Document{"feeds/newer": at(two, 12)})
	k.docs = map[string][]documents.LastGood{"feeds": {keeps(20, documents.Document{Name: "newer", Body: undone, Version: 9})}}
	if plans := k.plans(other, &r); len(plans) != 1 || plans[0].put || !slices.Equal(r.Unsure, []string{"feeds newer"}) || r.Serves["feeds newer"] != (Pointers{Now: "version 2", Kept: "version 1"}) {
		t.Errorf("unsure %q, which serve %v", r.Unsure, r.Serves)
	}
}

// Of a version whose bytes are nowhere: it is dropped from a document that is written, another
// serves in its place, or the document stays as etcd has it.
func TestMend(t *testing.T) {
	for _, c := range []struct {
		name       string
		nowhere    []string // of versions 1, 2 and 3, of which 3 serves
		put, older bool
		etcds      string // the version that etcd's ledger serves; "": it has none
		changed    bool
		serves     string
		lost       []Lost
		lacks      int
		dropped    int
		stays      bool // as etcd has it
	}{
		{"all are there", nil, true, false, "", false, "version 3", nil, 0, 0, false},
		{"one that does not serve", []string{"1"}, true, false, "", true, "version 3", nil, 1, 1, false},
		{"it is not written", []string{"1"}, false, false, "", false, "version 3", nil, 1, 0, false},
		{"it is not written, and older", []string{"1"}, false, true, "", true, "version 3", nil, 1, 1, false},
		{"what serves", []string{"3"}, true, false, "", true, "version 2", []Lost{{"feeds home 3", "version 2"}}, 0, 1, false},
		{"what serves, and is not written", []string{"3"}, false, false, "", false, "version 3", nil, 0, 0, false},
		{"all", []string{"1", "2", "3"}, true, false, "", true, "no version", []Lost{{"feeds home 3", "no version"}}, 2, 3, false},
		{"all, and etcd has one that serves", []string{"1", "2", "3"}, true, false, "9", false, "version 9", []Lost{{"feeds home 3", "version 9"}}, 2, 3, true},
	} {
		l, body := artefact(t, "1", "2", "3")
		p := &restoring{kind: "feeds", doc: documents.Document{Name: "home", Body: body}, put: c.put, ledger: l}
		for _, v := range c.nowhere {
			p.nowhere = append(p.nowhere, edition(v))
		}
		if c.etcds != "" {
			_, has := artefact(t, c.etcds)
			p.now.Data = []byte(has)
			p.parts = artefacts.PartsThere{"home/" + edition(c.etcds).Sum: 1}
		}
		var r Restored
		changed := p.mend(c.older, &r)
		got, err := ledger.Parse(p.doc.Body)
		if err != nil {
			t.Fatal(err)
		}
		if changed != c.changed || !slices.Equal(r.Lost, c.lost) || len(r.Lacks) != c.lacks || r.Dropped != c.dropped || c.put && p.put == c.stays || p.ledger.Serves() != c.serves || changed && got.Serves() != c.serves {
			t.Errorf("%s: changed %v, serves %s, %+v, put %v", c.name, changed, p.ledger.Serves(), r, p.put)
		}
	}
	p := &restoring{kind: "models", doc: documents.Document{Name: "m"}, put: true}
	e := edition("1")
	p.ledger = &ledger.Ledger{Versions: []ledger.Edition{e}, Serving: e.Sum}
	if err := lackedBodies([]*restoring{p}, cluster.Remembered{}); err != nil {
		t.Errorf("nothing is lacked: %v", err)
	}
	p.nowhere = []ledger.Edition{edition("0"), e}
	for _, c := range []struct {
		put  bool
		by   map[string]string
		want string
	}{
		{true, nil, "models m 1 (no process that runs has said that it keeps them; a directory that has them has a file bodies-models/" + e.Sum + ")"},
		{false, nil, "models m 1 (a directory that has them has a file bodies-models/" + e.Sum + ")"},
		{true, map[string]string{e.Sum: "host:/dir"}, "models m 1 (they are kept in host:/dir)"},
	} {
		p.put = c.put
		if err := lackedBodies([]*restoring{p}, cluster.Remembered{Bodies: c.by}); !errors.Is(err, ErrOlderDirs) || !strings.HasSuffix(err.Error(), "nor in etcd: "+c.want) && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	var r Restored
	for _, b := range [][3]string{{"m", "1", "a"}, {"m", "2", "a"}, {"m", "3", "b"}, {"n", "1", "b"}} {
		r.noteBytes(b[0], b[1], b[2])
	}
	if len(r.Bytes) != 3 || r.BytesOf() != 4 || !slices.Equal(r.Bytes[0].Versions, []string{"1", "2"}) {
		t.Errorf("%+v", r.Bytes)
	}
}

// What directories keep: the newest map, all documents and secrets, and which are empty.
func TestReadKept(t *testing.T) {
	write := func(dir, file string, body []byte) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700), os.WriteFile(filepath.Join(dir, file), body, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	mapOf := func(dir string, epoch int64, from keyspace.Origin, node string) {
		t.Helper()
		a, err := topology.Spread([]millrace.NodeID{"n1"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		a.Epoch = epoch
		body, err := json.Marshal(topology.NewMap(a, []topology.Node{{ID: "n1", Addr: node}}, nil).Kept(from))
		if err != nil {
			t.Fatal(err)
		}
		write(dir, filepath.Base(datadir.MapFile(dir)), body)
	}
	secret := func(b byte) []byte { return []byte(strings.Repeat(string(rune(b)), 32)) }
	older, newer, docs, empty := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	mapOf(older, 3, keyspace.Origin{Keyspace: first, Revision: 99}, "older:1")
	mapOf(newer, 5, keyspace.Origin{Keyspace: first, Revision: 50, Back: 7}, "newer:1")
	write(older, "secret-pages", secret('o'))
	write(newer, "secret-pages", secret('n'))
	write(docs, "secret-other", secret('d'))
	write(docs, "docs-feeds.json", []byte(`{"origin":{"keyspace":{"generation":2,"id":"aaaaaaaa22222222"},"revision":4},"documents":{"home":{"body":"YQ==","version":3}}}`))
	write(docs, "docs-x.txt", nil)
	write(docs, "bodies-models/abc", nil)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, f := range []string{"docs-feeds.json", "secret-other", "docs-x.txt", "bodies-models"} {
		if err := os.Chtimes(filepath.Join(docs, f), old, old); err != nil {
			t.Fatal(err)
		}
	}
	for _, dirs := range [][]string{{older, newer, docs, empty, filepath.Join(empty, "none")}, {docs, newer, older, filepath.Join(empty, "none"), empty}} {
		k, err := readKept(dirs)
		if err != nil {
			t.Fatal(err)
		}
		if k.assignment.Epoch != 5 || k.keyspace != second || string(k.secrets["pages"]) != string(secret('n')) || string(k.secrets["other"]) != string(secret('d')) || len(k.docs["feeds"]) != 1 || len(k.docs) != 1 {
			t.Errorf("epoch %d, keyspace %v, secrets %q, %d documents", k.assignment.Epoch, k.keyspace, k.secrets, len(k.docs["feeds"]))
		}
		if len(k.dirs) != 3 || len(k.empty) != 2 || !k.back[first] || k.back[second] || k.origin.Revision != 99 || k.docs["feeds"][0].Dir != docs || k.nodes["n1"].Addr == "" {
			t.Errorf("%d directories, %q empty, back %v, %+v", len(k.dirs), k.empty, k.back, k.origin)
		}
		for _, d := range k.dirs {
			if d.Dir == docs && !d.Written.Equal(old) || d.Dir != docs && d.Written.Before(old.Add(time.Minute)) {
				t.Errorf("%s was written at %v", d.Dir, d.Written)
			}
		}
	}
	bodies := t.TempDir()
	write(bodies, "bodies-models/abc", nil)
	for _, c := range []struct {
		dirs []string
		want string
	}{{nil, "no directory is named"}, {[]string{empty}, "nothing is kept in " + empty}, {[]string{docs}, "no map is kept in " + docs}, {[]string{bodies}, "no map is kept in"}} {
		if _, err := readKept(c.dirs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.dirs, err)
		}
	}
	for file, body := range map[string]string{"secret-x": "short", "docs-feeds.json": "{", "map.json": "{"} {
		dir := t.TempDir()
		write(dir, file, []byte(body))
		if _, err := readKept([]string{newer, dir}); err == nil {
			t.Errorf("a broken %s is taken", file)
		}
	}
	file := filepath.Join(empty, "file")
	write(empty, "file", nil)
	if _, err := readKept([]string{newer, file}); err == nil {
		t.Error("a file is a directory")
	}
}

// Directories that are older than what processes keep are refused, with what they lack and who
// keeps it.
func TestOlderDirectoriesAreRefused(t *testing.T) {
	doc := func(version int64) []documents.LastGood {
		return []documents.LastGood{{Origin: keyspace.Origin{Keyspace: first}, Documents: map[string]documents.Document{"home": {Name: "home", Version: version}}}}
	}
	for _, c := range []struct {
		name  string
		k     kept
		r     cluster.Remembered
		have  *keyspace.Snapshot
		epoch int64
		want  string
	}{
		{"nothing is remembered", kept{keyspace: first}, cluster.Remembered{}, found(first, 9, nil), 3, ""},
		{"a later restoration was found", kept{keyspace: first}, cluster.Remembered{}, &keyspace.Snapshot{Setback: &keyspace.Setback{Generation: 2}}, 3, "remembered restoration 1 of etcd, and these directories know of 0"},
		{"the same was found", kept{keyspace: first}, cluster.Remembered{}, &keyspace.Snapshot{Setback: &keyspace.Setback{Generation: 1}}, 3, ""},
		{"a later one is remembered", kept{keyspace: first}, cluster.Remembered{Keyspace: second}, found(first, 9, nil), 3, "remembers restoration 1 of etcd, and these directories know of 0"},
		{"of another keyspace", kept{keyspace: second}, cluster.Remembered{Keyspace: first, Newest: map[string]cluster.Kept{"map": {Revision: 9}}}, found(first, 9, nil), 3, ""},
		{"a later assignment", kept{keyspace: first, assignment: topology.Assignment{Epoch: 4}}, cluster.Remembered{Keyspace: first, Newest: map[string]cluster.Kept{"map": {Revision: 5, By: "host:/d"}}}, found(first, 9, nil), 3, "assignment 5, which is kept in host:/d (here it is 4)"},
		{"the same assignment", kept{keyspace: first, assignment: topology.Assignment{Epoch: 4}}, cluster.Remembered{Keyspace: first, Newest: map[string]cluster.Kept{"map": {Revision: 4}}}, found(first, 9, nil), 3, ""},
		{"which etcd has", kept{keyspace: first, assignment: topology.Assignment{Epoch: 4}}, cluster.Remembered{Keyspace: first, Newest: map[string]cluster.Kept{"map": {Revision: 5}}}, found(first, 9, nil), 5, ""},
		{"a later document", kept{keyspace: first, docs: map[string][]documents.LastGood{"feeds": doc(6)}}, cluster.Remembered{Keyspace: first, Newest: map[string]cluster.Kept{"feeds": {Name: "home", Revision: 7, By: "host:/d"}}}, found(first, 9, nil), 3, "feeds home of revision 7, which is kept in host:/d"},
		{"the same document", kept{keyspace: first, docs: map[string][]documents.LastGood{"feeds": doc(7)}}, cluster.Remembered{Keyspace: first, Newest: map[string]cluster.Kept{"feeds": {Name: "home", Revision: 7}}}, found(first, 9, nil), 3, ""},
		{"which etcd has", kept{keyspace: first}, cluster.Remembered{Keyspace: first, Newest: map[string]cluster.Kept{"feeds": {Name: "home", Revision: 7}}}, found(first, 9, map[string]documents.Document{"feeds/home": {Version: 7}}), 3, ""},
	} {
		err := c.k.refuseOlder(c.r, c.have, c.epoch)
		if errors.Is(err, ErrOlderDirs) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Of what several directories keep of a kind the newest counts: by generation, by what etcd
// lacks, and by revision.
func TestNewest(t *testing.T) {
	of := func(k keyspace.Name, revision, version int64) documents.LastGood {
		return documents.LastGood{Origin: keyspace.Origin{Keyspace: k, Revision: revision}, Documents: map[string]documents.Document{"home": {Name: "home", Version: version}}}
	}
	has := ofKind(found(first, 9, map[string]documents.Document{"feeds/home": {Version: 5}, "models/home": {Version: 99}}), "feeds")
	if len(has.Values) != 1 || has.Values["home"].Version != 5 || has.Revision != 9 {
		t.Errorf("of the kind: %+v", has)
	}
	for i, c := range []struct{ newer, older documents.LastGood }{
		{of(second, 1, 1), of(first, 9, 9)}, {of(first, 5, 6), of(first, 9, 5)}, {of(first, 9, 5), of(first, 5, 5)}, {of(first, 9, 6), of(first, 5, 6)}, {of(second, 9, 6), of(second, 5, 7)},
	} {
		for _, all := range [][]documents.LastGood{{c.newer, c.older}, {c.older, c.newer}} {
			if got := newest(all, has); got.Origin != c.newer.Origin {
				t.Errorf("%d: %+v is the newest", i, got.Origin)
			}
		}
	}
}
