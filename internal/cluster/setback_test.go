package cluster_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/steering"
)

// backed lets an etcd keep a backup of what it has now.
func (s *server) backed() (restore func()) {
	s.t.Helper()
	dir := s.t.TempDir()
	s.stop()
	check(s.t, os.CopyFS(dir, os.DirFS(s.dir)))
	s.start()
	return func() {
		s.t.Helper()
		s.stop()
		s.empty()
		check(s.t, os.CopyFS(s.dir, os.DirFS(dir)))
		s.start()
	}
}

// An etcd that went back to before a document, whose revisions have caught up since,
// is found by who remembers the document, whatever has become of it. All others are
// told: who watches nothing that is older than it was, who only looks, and who
// leads. Nobody changes anything before it is restored.
func TestAnEtcdThatWentBackIsToldToAll(t *testing.T) {
	t.Parallel()
	const key = "/millrace/test/docs/feeds/home"
	for name, c := range map[string]struct {
		before bool // the document was there before the backup
		theirs bool // somebody has written it since
		since  func(etcd *server)
	}{
		"it is gone":               {false, false, func(*server) {}},
		"it is older":              {true, false, func(*server) {}},
		"somebody wrote it since":  {true, true, func(etcd *server) { etcd.put(key, "theirs") }},
		"somebody made it anew":    {false, true, func(etcd *server) { etcd.put(key, "theirs") }},
		"the revision is the same": {false, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
			first := etcd.open(dir)
			docs, w := documentsOf(t, first), watch(t, first)
			check(t, steering.Assign(ctx, first, spreadOver(t, 1, "n1")))
			await(t, "the map is there", w.Changed, func() bool { return w.Current().Epoch() == 1 })
			if c.before {
				check(t, putDocument(ctx, docs, "home", []byte("old")))
				await(t, "it is there", docs.Changed, func() bool { return docs.Current()["home"].Body == "old" })
			}
			restore := etcd.backed()
			check(t, putDocument(ctx, docs, "home", []byte("mine")))
			await(t, "it is there", docs.Changed, func() bool { return docs.Current()["home"].Body == "mine" })
			at := docs.Current()["home"].Version
			check(t, first.Close())
			restore()
			if c.since == nil {
				etcd.raw(func(raw *clientv3.Client) error {
					for {
						got, err := raw.Get(ctx, key)
						if err != nil || got.Header.Revision == at {
							return err
						}
						if _, err := raw.Put(ctx, map[bool]string{true: key, false: "/elsewhere"}[got.Header.Revision == at-1], "theirs"); err != nil {
							return err
						}
					}
				})
			} else {
				for range 20 {
					etcd.put("/elsewhere", "")
				}
				c.since(etcd)
			}

			other := etcd.open("") // who knows nothing of it
			models, err := artefacts.Watch(ctx, other, "models")
			check(t, err)
			if err := other.Lost(); err != nil {
				t.Fatal("it is told before anybody knows:", err)
			}
			blind := etcd.open("") // who hears of it by nothing but the refusal
			blind.SetRelist(time.Hour)
			unheard, err := artefacts.Watch(ctx, blind, "models")
			check(t, err)
			unseen, err := documents.Watch(ctx, blind, "feeds")
			check(t, err)
			lead, err := other.Lead(ctx, cluster.Leader{Name: "c"})
			check(t, err)
			first = etcd.open(dir)
			docs, w = documentsOf(t, first), watch(t, first)
			await(t, "it is found", docs.Changed, func() bool { return docs.Fault() != nil })
			if docs.Current()["home"].Body != "mine" {
				t.Errorf("the last good one is gone: %v", docs.Current())
			}
			await(t, "it is told to who watches the map", w.Changed, func() bool { return w.Current().Lost() != "" })
			await(t, "it is told to who watches something else", models.Changed, func() bool { return models.Fault() != nil })
			if err := other.Lost(); !errors.Is(err, cluster.ErrLost) {
				t.Errorf("lost: %v", err)
			}
			look := watch(t, etcd.open(""))
			if l := look.Current().Lost(); !strings.Contains(l, "remembered newer feeds") || look.Fault() == nil || !look.Current().Health(nil).Lost {
				t.Errorf("who looks is told %q, %v", l, look.Fault())
			}
			fresh, err := documents.Watch(ctx, other, "feeds") // by one that has nothing better
			check(t, err)
			refused := map[string]func() error{
				"publish": func() error {
					_, _, err := models.Publish(ctx, "m", "", []byte("body"), "")
					return err
				},
				"change": func() error {
					return fresh.Change(ctx, "other", func(string) (string, error) { return "x", nil })
				},
				"steer": func() error { return steering.Change(ctx, other, lead, func(s *steering.State) error { return nil }) },
			}
			blindly := map[string]func() error{
				"publish": func() error {
					_, _, err := unheard.Publish(ctx, "m", "", []byte("another"), "")
					return err
				},
				"change": func() error {
					return unseen.Change(ctx, "other", func(string) (string, error) { return "y", nil })
				},
			}
			for what, do := range blindly {
				if err := do(); !errors.Is(err, cluster.ErrLost) || blind.Lost() != nil {
					t.Errorf("%s blindly: %v, %v", what, err, blind.Lost())
				}
			}
			for what, do := range refused {
				if err := do(); !errors.Is(err, cluster.ErrLost) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, have := docs.Current()["other"]; have {
				t.Error("it was changed")
			}
			r, err := restoration.Restore(ctx, first, dir)
			check(t, err)
			await(t, "all is well", docs.Changed, func() bool { return docs.Fault() == nil })
			want, stays, n := "mine", "", 1
			if c.theirs {
				want, stays, n = "theirs", "feeds home", 0
			}
			if got := docs.Current()["home"].Body; got != want || strings.Join(r.Stays, " ") != stays || len(r.Documents) != n {
				t.Errorf("%s after the restoration %+v", got, r)
			}
			await(t, "the models are well", models.Changed, func() bool { return models.Fault() == nil })
			await(t, "so are the others", fresh.Changed, func() bool { return fresh.Fault() == nil })
			for what, do := range refused {
				if err := do(); err != nil {
					t.Errorf("restored, %s: %v", what, err)
				}
			}
			if l := watch(t, etcd.open("")).Current().Lost(); l != "" {
				t.Error("restored:", l)
			}
		})
	}
}
