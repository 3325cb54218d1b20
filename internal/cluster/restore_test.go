package cluster_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// past is a cluster whose etcd goes back again and again, beside what is known of it.
type past struct {
	t    *testing.T
	etcd *server
	dirs []string          // of two processes
	runs []*cluster.Client // nil: it is down
	docs []*documents.Kind
	now  map[string]string // what is newest
	last int               // number of the last body
}

func newPast(t *testing.T) *past {
	p := &past{t: t, etcd: startEtcd(t), dirs: []string{t.TempDir(), t.TempDir()}, runs: make([]*cluster.Client, 2), docs: make([]*documents.Kind, 2), now: map[string]string{}}
	check(t, steering.Assign(t.Context(), p.etcd.command(), spreadOver(t, 1, "n1")))
	p.start(0)
	p.start(1)
	return p
}

func (p *past) start(i int) {
	p.t.Helper()
	p.runs[i] = p.etcd.open(p.dirs[i])
	w := watch(p.t, p.runs[i])
	p.docs[i] = documentsOf(p.t, p.runs[i])
	await(p.t, "the map is there", w.Changed, func() bool { return w.Current().Epoch() > 0 })
}

func (p *past) stop(i int) {
	p.t.Helper()
	if p.runs[i] != nil {
		check(p.t, p.runs[i].Close())
		p.runs[i] = nil
	}
}

// heard waits until who runs knows all that is newest.
func (p *past) heard() {
	p.t.Helper()
	for i, docs := range p.docs {
		if p.runs[i] == nil {
			continue
		}
		await(p.t, "all is heard", docs.Changed, func() bool {
			now := map[string]string{}
			for name, d := range docs.Current() {
				now[name] = d.Body
			}
			return docs.Fault() == nil && maps.Equal(now, p.now)
		})
	}
}

// kept waits until who runs keeps an assignment on disk.
func (p *past) kept(epoch int64) {
	p.t.Helper()
	for i, dir := range p.dirs {
		if p.runs[i] == nil {
			continue
		}
		await(p.t, "it is kept", func() <-chan struct{} { return closedAfter(p.t) }, func() bool {
			a, err := topology.ReadAssignment(filepath.Join(dir, "map.json"))
			return err == nil && a.Epoch == epoch
		})
	}
}

// told waits until somebody has said what it keeps of a kind.
func (p *past) told(kind string) {
	p.t.Helper()
	await(p.t, "it is told", func() <-chan struct{} { return closedAfter(p.t) }, func() (is bool) {
		p.etcd.raw(func(raw *clientv3.Client) error {
			got, err := raw.Get(p.t.Context(), "/millrace/test/remembered")
			is = err == nil && len(got.Kvs) > 0 && strings.Contains(string(got.Kvs[0].Value), `"`+kind+`":{`)
			return err
		})
		return is
	})
}

// write writes a document past all refusals.
func (p *past) write(name string) string {
	p.last++
	body := fmt.Sprint("body ", p.last)
	p.etcd.put("/millrace/test/docs/feeds/"+name, body)
	return body
}

// back restores etcd, has the loss noticed if anybody runs, lets somebody write some
// documents since, and restores the cluster. Only those stay.
func (p *past) back(restore func(), since ...string) {
	p.t.Helper()
	ctx := p.t.Context()
	restore()
	for i, docs := range p.docs {
		if p.runs[i] != nil {
			await(p.t, "the loss is noticed", docs.Changed, func() bool { return docs.Fault() != nil && p.runs[i].Lost() != nil })
		}
	}
	await(p.t, "the loss is told", func() <-chan struct{} { return closedAfter(p.t) }, func() bool {
		look := p.etcd.open("")
		defer look.Close()
		return p.runs[0] == nil && p.runs[1] == nil || watch(p.t, look).Current().Lost() != ""
	})
	var stays []string
	for _, name := range since {
		if _, known := p.now[name]; known {
			stays = append(stays, "feeds "+name)
		}
		p.now[name] = p.write(name)
	}
	slices.Sort(stays)
	r, err := restoration.Restore(ctx, p.etcd.command(), p.dirs...)
	check(p.t, err)
	if !slices.Equal(r.Stays, stays) || r.Unsure != nil || r.Again != nil {
		p.t.Fatalf("restored %+v; want %q to stay", r, stays)
	}
	for i := range p.runs {
		if p.runs[i] == nil {
			p.start(i)
		}
	}
	p.heard()
	p.kept(r.Epoch)
	if _, err := restoration.Restore(ctx, p.etcd.command(), p.dirs...); !errors.Is(err, restoration.ErrNothingLost) {
		p.t.Fatalf("again: %v", err)
	}
}

// Whatever etcd goes back to, before or after whichever restoration, all comes back
// that any directory knew as newest, and what somebody has written since stays.
func TestEtcdGoesBackAgainAndAgain(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			t.Log("seed", seed)
			random := rand.New(rand.NewPCG(seed, 1))
			p := newPast(t)
			var backups []func()
			names := []string{"a", "b", "c", "d", "e"}
			some := func() []string { return slices.Clone(names[:random.IntN(3)]) }
			for range 3 {
				for range 1 + random.IntN(2) {
					for _, name := range append(some(), "e") {
						p.now[name] = p.write(name)
					}
					p.heard()
					backups = append(backups, p.etcd.backed())
					p.heard()
				}
				down := random.IntN(4) // 0 and 1: one of them knows less; 2: both are up
				if down < 2 {
					p.stop(down)
				}
				random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				for _, name := range append(some(), "d") {
					p.now[name] = p.write(name)
				}
				p.heard()
				if down == 3 { // nobody notices
					p.stop(0)
					p.stop(1)
					p.back(backups[random.IntN(len(backups))])
					continue
				}
				p.back(backups[random.IntN(len(backups))], some()...)
			}
		})
	}
}

// closedAfter is for what tells of no change: it is looked at again.
func closedAfter(t *testing.T) <-chan struct{} {
	t.Helper()
	c := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { close(c) })
	return c
}

// The same backup twice, after what was written between two restorations.
func TestTheSameBackupTwice(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	p.now["home"], p.now["jobs"] = p.write("home"), p.write("jobs")
	p.heard()
	backup := p.etcd.backed()
	p.now["home"] = p.write("home")
	p.heard()
	p.back(backup)
	p.now["made"] = p.write("made")
	p.heard()
	p.back(backup)
	p.back(backup, "jobs")
}

// What was removed after the backup is told, and directories that are all from before
// the last restoration are refused, since others know more.
func TestARestorationTellsWhatItCannotRestore(t *testing.T) {
	t.Parallel()
	ctx, p, old := t.Context(), newPast(t), t.TempDir()
	p.now["home"], p.now["gone"] = p.write("home"), p.write("gone")
	p.heard()
	p.stop(0) // or a file may be replaced while it is copied
	check(t, os.CopyFS(old, os.DirFS(p.dirs[0])))
	p.start(0)
	p.heard()
	backup := p.etcd.backed()
	p.heard()
	check(t, p.docs[0].Delete(ctx, "gone"))
	delete(p.now, "gone")
	p.heard()
	for _, again := range []bool{false, true} {
		p.now["home"] = p.write("home")
		p.heard()
		backup()
		for i, docs := range p.docs {
			await(t, "the loss is noticed", docs.Changed, func() bool { return docs.Fault() != nil && p.runs[i].Lost() != nil })
		}
		if again {
			refused(t, second(restoration.Restore(ctx, p.etcd.command(), old)), restoration.ErrOlderDirs, "these directories know of 0")
		}
		r, err := restoration.Restore(ctx, p.etcd.command(), append(p.dirs, old)...)
		if check(t, err); !slices.Equal(r.Again, []string{"feeds gone"}) || len(r.Documents) != 1 || r.Stays != nil || r.Unsure != nil {
			t.Errorf("restored %+v", r)
		}
		check(t, p.docs[0].Delete(ctx, "gone"))
		p.heard()
		p.kept(r.Epoch)
	}
	if r, err := restoration.Restore(ctx, p.etcd.command(), p.dirs...); !errors.Is(err, restoration.ErrNothingLost) {
		t.Errorf("restored %+v, %v", r, err)
	}
}

func second[T any](_ T, err error) error { return err }

// A process may have ended between its writing of documents and of the map: it knows of
// the last restoration by either.
func TestADirectoryKnowsByItsDocuments(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	p.now["home"] = p.write("home")
	p.heard()
	backup := p.etcd.backed()
	p.now["home"] = p.write("home")
	p.heard()
	former := make([][]byte, len(p.dirs))
	for i, dir := range p.dirs {
		var err error
		former[i], err = os.ReadFile(filepath.Join(dir, "map.json"))
		check(t, err)
	}
	p.back(backup)
	p.now["made"] = p.write("made")
	p.heard()
	for i, dir := range p.dirs {
		p.stop(i)
		check(t, os.WriteFile(filepath.Join(dir, "map.json"), former[i], 0o644))
	}
	backup()
	p.start(0)
	await(t, "it is found", p.docs[0].Changed, func() bool { return p.docs[0].Fault() != nil })
	p.stop(0)
	check(t, os.WriteFile(filepath.Join(p.dirs[0], "map.json"), former[0], 0o644))
	r, err := restoration.Restore(t.Context(), p.etcd.command(), p.dirs...)
	if check(t, err); len(r.Documents) != 2 || r.Stays != nil || r.Unsure != nil {
		t.Fatalf("restored %+v", r)
	}
	p.start(0)
	p.heard()
}

// Who was new when etcd had gone back, and nobody had found it yet, keeps what etcd
// has, under a higher revision than those who know better.
func TestWhoIsNewInAnOlderEtcdKnowsNoBetter(t *testing.T) {
	t.Parallel()
	for _, found := range []bool{false, true} {
		p, fresh := newPast(t), t.TempDir()
		p.now["home"] = p.write("home")
		p.heard()
		backup := p.etcd.backed()
		p.now["home"], p.now["made"] = p.write("home"), p.write("made")
		p.heard()
		p.stop(0)
		p.stop(1)
		backup()
		for range 30 {
			p.etcd.put("/elsewhere", "")
		}
		if found {
			p.start(0)
			await(t, "the loss is noticed", p.docs[0].Changed, func() bool { return p.docs[0].Fault() != nil && p.runs[0].Lost() != nil })
			await(t, "the loss is told", func() <-chan struct{} { return closedAfter(t) }, func() bool {
				look := p.etcd.open("")
				defer look.Close()
				return watch(t, look).Current().Lost() != ""
			})
		}
		c := p.etcd.open(fresh)
		w, docs := watch(t, c), documentsOf(t, c)
		await(t, "it has what there is", docs.Changed, func() bool { return len(docs.Current()) == 1 && w.Current().Epoch() == 1 })
		check(t, c.Close())
		r, err := restoration.Restore(t.Context(), p.etcd.command(), fresh, p.dirs[0])
		if check(t, err); len(r.Documents) != 2 || r.Stays != nil || r.Unsure != nil || r.Again != nil {
			t.Errorf("found %v: restored %+v", found, r)
		}
	}
}

// Directories that all lack what a process keeps are refused: what it keeps is named, and
// where. So of documents, of the assignment, and of what no named directory has any of;
// of an etcd that went back, and of an empty one.
func TestDirectoriesThatLackWhatProcessesKeepAreRefused(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		emptied bool
		change  func(p *past)
		says    string
	}{
		"a document":                 {false, func(p *past) { p.now["home"] = p.write("home") }, "feeds home of revision "},
		"a document of an empty one": {true, func(p *past) { p.now["home"] = p.write("home") }, "feeds home of revision "},
		"an assignment": {false, func(p *past) {
			check(p.t, steering.Assign(p.t.Context(), p.runs[1], spreadOver(p.t, 2, "n1", "n2")))
			p.kept(2)
		}, "assignment 2, which is kept in "},
		"another kind": {false, func(p *past) {
			more, err := documents.Watch(p.t.Context(), p.runs[1], "decisions")
			check(p.t, err)
			check(p.t, putDocument(p.t.Context(), more, "x", []byte("vetoed")))
			await(p.t, "it is heard", more.Changed, func() bool { return len(more.Current()) == 1 })
		}, "decisions x of revision "},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx, p := t.Context(), newPast(t)
			p.now["home"], p.now["jobs"] = p.write("home"), p.write("jobs")
			p.heard()
			backup := p.etcd.backed()
			p.heard()
			p.stop(0)
			c.change(p)
			p.heard()
			if c.emptied {
				p.etcd.stop()
				p.etcd.empty()
				p.etcd.start()
				p.etcd.open("")
			} else {
				backup()
			}
			await(t, "the loss is noticed", p.docs[1].Changed, func() bool { return p.docs[1].Fault() != nil && p.runs[1].Lost() != nil })
			kind, _, _ := strings.Cut(c.says, " ")
			p.told(map[bool]string{true: "map", false: kind}[kind == "assignment"])
			err := second(restoration.Restore(ctx, p.etcd.command(), p.dirs[0]))
			refused(t, err, restoration.ErrOlderDirs, c.says)
			if !strings.Contains(err.Error(), ":"+p.dirs[1]) {
				t.Errorf("it does not say where: %v", err)
			}
			if _, err := restoration.Restore(ctx, p.etcd.command(), p.dirs...); err != nil {
				t.Error(err)
			}
			p.start(0)
			p.heard()
		})
	}
}

// A version that was put after etcd had gone back, by a change that was refused before it
// served, is not newer than what served: that comes back. One that serves stays.
func TestARefusedChangeUndoesNothing(t *testing.T) {
	t.Parallel()
	for _, served := range []bool{false, true} {
		ctx, p := t.Context(), newPast(t)
		tests, err := artefacts.Watch(ctx, p.runs[1], "experiments")
		check(t, err)
		put := func(a *artefacts.Kind, body string, serve bool) {
			t.Helper()
			v, _, err := a.Publish(ctx, "ranker", "", []byte(body), "ann")
			check(t, err)
			if serve {
				check(t, a.Serve(ctx, v, nil, "ann"))
			}
		}
		put(tests, "runs", true)
		backup := p.etcd.backed()
		put(tests, "pauses", true)
		p.stop(0)
		p.stop(1) // nobody has found it when somebody writes
		backup()
		for range 30 {
			p.etcd.put("/elsewhere", "")
		}
		blind, err := artefacts.Watch(ctx, p.etcd.open(""), "experiments")
		check(t, err)
		put(blind, "stopped", served)
		p.start(1)
		r, err := restoration.Restore(ctx, p.etcd.command(), p.dirs...)
		check(t, err)
		const doc = "experiments ranker"
		if served {
			if !slices.Equal(r.Stays, []string{doc}) || r.Serves[doc] != (restoration.Pointers{Now: "version 2", Kept: "version 2"}) || r.Undone != nil {
				t.Errorf("restored %+v", r)
			}
			continue
		}
		if len(r.Documents) != 1 || r.Documents[0].Document != doc || r.Documents[0].Dir != p.dirs[1] || r.Documents[0].Serves != "version 2" || !slices.Equal(r.Undone, []string{doc + " 2"}) || r.Stays != nil {
			t.Errorf("restored %+v", r)
		}
	}
}

// What etcd has lost is found by the directories alone, where nobody has found it yet and
// its revisions have caught up.
func TestARestorationFindsTheLossItself(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	backup := p.etcd.backed()
	p.now["made"] = p.write("made")
	p.heard()
	p.stop(0)
	p.stop(1)
	backup()
	for range 100 {
		p.etcd.put("/elsewhere", "")
	}
	r, err := restoration.Restore(t.Context(), p.etcd.command(), p.dirs...)
	if check(t, err); len(r.Documents) != 1 || r.Documents[0].Document != "feeds made" || len(r.Dirs) != 2 || r.Dirs[0].Written.IsZero() {
		t.Errorf("restored %+v", r)
	}
}

// Who means it restores from directories that lack what processes keep: all take that,
// whoever kept more says in the log what it gives up, and it is well again.
func TestWhatIsGivenUpIsLogged(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), newPast(t)
	p.now["home"] = p.write("home")
	p.heard()
	old := maps.Clone(p.now)
	backup := p.etcd.backed()
	p.heard()
	p.stop(0)
	var logged bytes.Buffer
	p.stop(1)
	p.runs[1] = p.etcd.openLogging(p.dirs[1], slog.New(slog.NewTextHandler(&logged, nil)))
	w := watch(t, p.runs[1])
	p.docs[1] = documentsOf(t, p.runs[1])
	p.now["home"], p.now["made"] = p.write("home"), p.write("made")
	p.heard()
	check(t, steering.Assign(ctx, p.runs[1], spreadOver(t, 2, "n1", "n2")))
	p.kept(2)
	backup()
	await(t, "the loss is noticed", p.docs[1].Changed, func() bool { return p.docs[1].Fault() != nil && p.runs[1].Lost() != nil })
	p.told("map")
	refused(t, second(restoration.Restore(ctx, p.etcd.command(), p.dirs[0])), restoration.ErrOlderDirs, "assignment 2, ")
	r, err := restoration.RestoreOlder(ctx, p.etcd.command(), p.dirs[0])
	if check(t, err); r.Epoch != 3 {
		t.Errorf("restored %+v", r)
	}
	p.now = old
	p.heard()
	await(t, "it is well", w.Changed, func() bool { return w.Fault() == nil && w.Current().Epoch() == 3 })
	p.stop(1) // no more is logged
	for _, name := range []string{"home", "made"} {
		if !strings.Contains(logged.String(), `msg="giving up what was kept: etcd was restored without it" cluster=test documents=feeds name=`+name+" revision=") {
			t.Errorf("%s is given up without a word: %s", name, logged.String())
		}
	}
}

// Who watches no map keeps documents, secrets and bytes all the same: a directory without
// one gives them, under the map of another. Only one that has nothing is left out.
func TestADirectoryWithoutAMapGivesItsDocuments(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), newPast(t)
	p.now["home"] = p.write("home")
	p.heard()
	p.stop(0)
	p.now["made"] = p.write("made")
	p.heard()
	p.stop(1)
	check(t, os.Remove(filepath.Join(p.dirs[1], "map.json")))
	nothing, bare := filepath.Join(t.TempDir(), "cluster"), t.TempDir()
	check(t, os.MkdirAll(filepath.Join(bare, "bodies-feeds"), 0o755))
	check(t, os.WriteFile(filepath.Join(bare, "bodies-feeds", "sum"), []byte("x"), 0o644))
	p.etcd.stop()
	p.etcd.empty()
	p.etcd.start()
	c := p.etcd.open("")
	if err := second(restoration.Restore(ctx, c, p.dirs[1], nothing)); err == nil || !strings.Contains(err.Error(), "no map is kept in "+p.dirs[1]) {
		t.Errorf("%v", err)
	}
	r, err := restoration.Restore(ctx, c, append(p.dirs, nothing, bare)...)
	if check(t, err); len(r.Documents) != 2 || r.Documents[0].Dir != p.dirs[1] || len(r.Dirs) != 3 || !slices.Equal(r.Empty, []string{nothing}) {
		t.Errorf("restored %+v", r)
	}
}

// A restoration begins the generation after all that anybody knows of, and its assignment
// comes after all that anybody keeps.
func TestARestorationComesAfterAllThatIsKnown(t *testing.T) {
	t.Parallel()
	ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
	c := etcd.open("")
	c.SetRelist(10 * time.Millisecond) // it is waited for
	of := func(generation int64) keyspace.Name {
		return keyspace.Name{Generation: generation, ID: fmt.Sprintf("aaaaaaaa%08d", generation)}
	}
	text := func(doc any) string {
		t.Helper()
		body, err := json.Marshal(doc)
		check(t, err)
		return string(body)
	}
	kept := spreadOver(t, 3, "n1", "n2")
	check(t, os.WriteFile(filepath.Join(dir, "map.json"), []byte(text(topology.NewMap(kept, nil, nil).Kept(keyspace.Origin{Keyspace: of(2), Revision: 7}))), 0o600))
	now := time.Now().UTC()
	for name, x := range map[string]struct {
		has        keyspace.Name // etcd
		setback    *keyspace.Setback
		remembered *cluster.Remembered
		epoch      int64 // that etcd has; 0: none
		generation int64 // that begins
		restored   int64 // the epoch
		shrinks    bool
	}{
		"an etcd that lost all":             {keyspace.Name{}, nil, nil, 0, 3, 4, false},
		"an older one":                      {of(1), nil, nil, 0, 3, 4, false},
		"one that went back":                {of(2), &keyspace.Setback{Generation: 2, When: now}, nil, 0, 3, 4, false},
		"what was found by later ones":      {of(2), &keyspace.Setback{Generation: 5, When: now}, nil, 0, 6, 4, false},
		"what others remember":              {keyspace.Name{}, nil, &cluster.Remembered{Keyspace: of(7)}, 0, 8, 4, false},
		"what others remember of others":    {keyspace.Name{}, nil, &cluster.Remembered{Keyspace: keyspace.Name{Generation: 7, ID: "bbbbbbbb00000007"}}, 0, 3, 4, false},
		"a later assignment is remembered":  {keyspace.Name{}, nil, &cluster.Remembered{Keyspace: of(2), Newest: map[string]cluster.Kept{cluster.MapKind: {Revision: 9}}}, 0, 3, 10, true},
		"the same assignment is remembered": {keyspace.Name{}, nil, &cluster.Remembered{Keyspace: of(2), Newest: map[string]cluster.Kept{cluster.MapKind: {Revision: 3}}}, 0, 3, 4, false},
		"somebody has assigned since":       {keyspace.Name{}, nil, nil, 4, 3, 4, false},
		"etcd has the same assignment":      {keyspace.Name{}, nil, nil, 3, 3, 4, false},
	} {
		etcdtest.Lose(t, etcd.addr, "/millrace/test/")
		if x.has != (keyspace.Name{}) {
			etcd.put("/millrace/test/keyspace", x.has.String())
		}
		if x.setback != nil {
			etcd.put("/millrace/test/setback", text(x.setback))
		}
		if x.remembered != nil {
			etcd.put("/millrace/test/remembered", text(x.remembered))
		}
		if x.epoch > 0 {
			etcd.putAssignment(spreadOver(t, x.epoch, "n1", "n2"))
		}
		r, err := restoration.RestoreOlder(ctx, c, dir)
		if check(t, err); r.Epoch != x.restored {
			t.Errorf("%s: epoch %d, want %d", name, r.Epoch, x.restored)
		}
		s, err := steering.Read(ctx, c)
		check(t, err)
		is, err := c.List(ctx, cluster.MapPrefix)
		check(t, err)
		if k := is.Keyspace; k.Generation != x.generation || !of(2).Before(k) || is.Setback != nil || is.Count != "720" || s.Assignment.Epoch != x.restored {
			t.Errorf("%s: %v, %+v, epoch %d", name, k, is.Setback, s.Assignment.Epoch)
		}
		if got := strings.Contains(string(is.Values["assignment"].Data), `"allow_shrink":true`); got != x.shrinks {
			t.Errorf("%s: it may shrink: %v", name, got)
		}
		if _, version, err := c.Remembered(ctx); err != nil || version != 0 {
			t.Errorf("%s: it is still remembered: %v", name, err)
		}
	}
}
