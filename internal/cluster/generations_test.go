package cluster_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/secrets"
)

// A revocation ends what was yet to take its place, too: for who reads them, for who
// has heard of it before, and for who starts with what is on disk. What is made after
// it takes its place.
func TestARevocationEndsWhatIsToCome(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	etcd := startEtcd(t)
	c := etcd.open(dir)
	g, err := secrets.Watch(ctx, c, "pages")
	check(t, err)
	now := time.Now().Truncate(time.Millisecond)
	coming := secrets.Generation{From: now.Add(secrets.Ahead - time.Second)}
	revokes := secrets.Generation{From: now, Alone: true}
	next := secrets.Generation{From: now.Add(secrets.Ahead + time.Second)}
	from := func(all []secrets.Generation) (times []time.Time) {
		for _, a := range all {
			times = append(times, a.From)
		}
		return times
	}
	same := func(what string, got []secrets.Generation, want ...time.Time) {
		t.Helper()
		if !slices.EqualFunc(from(got), append(want, time.Time{}), time.Time.Equal) { // and the first
			t.Errorf("%s: from %v, not %v", what, from(got), want)
		}
	}
	heard := func(n secrets.Generation) {
		t.Helper()
		check(t, secrets.Rotate(ctx, c, "pages", n, now.Add(-time.Hour)))
		await(t, "a new generation", g.Changed, func() bool {
			return slices.ContainsFunc(g.Current(), func(a secrets.Generation) bool { return a.From.Equal(n.From) })
		})
	}
	heard(coming)
	same("one is to come", g.Current(), coming.From)
	heard(revokes)
	same("it is revoked", g.Current(), revokes.From)
	heard(next)
	same("another comes", g.Current(), next.From, revokes.From)
	all, err := secrets.All(ctx, c, "pages")
	check(t, err)
	same("who reads them", all, next.From, revokes.From)
	again := etcd.open(dir)
	etcd.stop()
	late, err := secrets.Watch(ctx, again, "pages")
	check(t, err)
	same("who starts without etcd", late.Current(), next.From, revokes.From)
}

// A revocation ends all that there are, though the clock of the machine that it is
// made on is behind, or that on which the newest was made was ahead; the new one
// signs from its own time on.
func TestARevocationByAnotherClock(t *testing.T) {
	ctx := t.Context()
	etcd := startEtcd(t)
	c := etcd.open(t.TempDir())
	_, err := secrets.Watch(ctx, c, "pages")
	check(t, err)
	now := time.Now().Truncate(time.Millisecond)
	for _, x := range []struct {
		newest  secrets.Generation
		revoked time.Time // by the clock of who does so
	}{
		{secrets.Generation{From: now.Add(-time.Hour)}, now.Add(-2 * time.Hour)},
		{secrets.Generation{From: now.Add(-30 * time.Minute)}, now.Add(-30 * time.Minute)},
		{secrets.Generation{From: now.Add(-10 * time.Minute), Alone: true}, now.Add(-11 * time.Minute)},
		{secrets.Generation{From: now.Add(time.Hour)}, now},
	} {
		check(t, secrets.Rotate(ctx, c, "pages", x.newest, now.Add(-96*time.Hour)))
		before, err := secrets.All(ctx, c, "pages")
		check(t, err)
		check(t, secrets.Rotate(ctx, c, "pages", secrets.Generation{From: x.revoked, Alone: true}, now.Add(-96*time.Hour)))
		all, err := secrets.All(ctx, c, "pages")
		check(t, err)
		by := x.newest.From.Add(time.Millisecond)
		for i, g := range all {
			old := slices.ContainsFunc(before, func(b secrets.Generation) bool { return string(b.Secret) == string(g.Secret) })
			switch end := secrets.Until(all, i, 24*time.Hour); {
			case old && (end.IsZero() || end.After(by)):
				t.Errorf("%v: that from %v is good until %v", x, g.From, end)
			case !old && g.From.After(by):
				t.Errorf("%v: the new one signs from %v on", x, g.From)
			}
		}
		if string(all[0].Secret) == string(before[0].Secret) || !slices.ContainsFunc(all, func(g secrets.Generation) bool {
			return g.From.Equal(x.revoked) && string(g.Secret) == string(all[0].Secret)
		}) {
			t.Errorf("%v: it does not sign from its time on: %v", x, all)
		}
	}
}

// A new generation reaches whoever watches, is there for whoever starts, with
// etcd and without, and takes nothing away that may still be asked for.
func TestSecretsRotate(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	etcd := startEtcd(t)
	c := etcd.open(dir)
	if err := secrets.Rotate(ctx, c, "pages", secrets.Generation{From: time.Now()}, time.Time{}); err == nil {
		t.Error("what is not there is replaced")
	}
	g, err := secrets.Watch(ctx, c, "pages")
	check(t, err)
	first := g.Current()
	if len(first) != 1 || len(first[0].Secret) != 32 || !first[0].From.IsZero() {
		t.Fatalf("the first: %v", first)
	}
	add := func(n secrets.Generation, keep time.Time, want int) []secrets.Generation {
		t.Helper()
		check(t, secrets.Rotate(ctx, c, "pages", n, keep))
		await(t, "a new generation", g.Changed, func() bool {
			return slices.ContainsFunc(g.Current(), func(a secrets.Generation) bool {
				return a.From.Equal(n.From) && a.Alone == n.Alone && len(a.Secret) == 32
			})
		})
		all, err := secrets.All(ctx, c, "pages")
		check(t, err)
		if len(all) != want {
			t.Errorf("etcd has %d generations, not %d", len(all), want)
		}
		return g.Current()
	}
	now := time.Now().Truncate(time.Millisecond)
	add(secrets.Generation{From: now.Add(-72 * time.Hour)}, now.Add(-96*time.Hour), 2)
	add(secrets.Generation{From: now.Add(-71 * time.Hour)}, now.Add(-96*time.Hour), 3)
	// The first stays, since whoever starts would make it again.
	all := add(secrets.Generation{From: now.Add(time.Hour)}, now.Add(-48*time.Hour), 3)
	if string(all[len(all)-1].Secret) != string(first[0].Secret) || len(all) != 4 {
		t.Errorf("%d generations are known, and the first is %v", len(all), all[len(all)-1])
	}
	if err := secrets.Rotate(ctx, c, "pages", secrets.Generation{From: now.Add(2 * time.Hour)}, now); err == nil {
		t.Error("one that is yet to come has another beside it")
	}
	add(secrets.Generation{From: now, Alone: true}, now.Add(-96*time.Hour), 5) // and once more, behind what an hour ahead was made
	same := func(what string, c *cluster.Client) {
		t.Helper()
		again, err := secrets.Watch(ctx, c, "pages")
		check(t, err)
		if !slices.EqualFunc(again.Current()[:2], g.Current()[:2], func(a, b secrets.Generation) bool {
			return string(a.Secret) == string(b.Secret) && a.From.Equal(b.From) && a.Alone == b.Alone
		}) {
			t.Errorf("%s: %v, not %v", what, again.Current(), g.Current())
		}
	}
	other := etcd.open(t.TempDir())
	same("another process", other)
	again := etcd.open(dir)
	etcd.stop()
	same("without etcd", again)
}

// A name in etcd that is no generation's writes nothing outside of the data directory,
// and what comes behind it is heard.
func TestANameInEtcdLeadsNowhere(t *testing.T) {
	ctx, above := t.Context(), t.TempDir()
	dir := filepath.Join(above, "data")
	check(t, os.Mkdir(dir, 0o700))
	etcd := startEtcd(t)
	c := etcd.open(dir)
	put := func(name string) {
		t.Helper()
		_, err := c.Etcd().Put(ctx, c.Prefix()+cluster.SecretsPrefix+name, strings.Repeat("x", secrets.Size))
		check(t, err)
	}
	put("pages./../../before")
	g, err := secrets.Watch(ctx, c, "pages")
	check(t, err)
	put("pages./../../behind")
	next := secrets.Generation{From: time.Now().Add(time.Second).Truncate(time.Millisecond)}
	check(t, secrets.Rotate(ctx, c, "pages", next, time.Now().Add(-time.Hour)))
	await(t, "a new generation", g.Changed, func() bool {
		return slices.ContainsFunc(g.Current(), func(a secrets.Generation) bool { return a.From.Equal(next.From) })
	})
	all, err := os.ReadDir(above)
	check(t, err)
	if len(all) != 1 {
		t.Errorf("beside the data directory there is %v", all)
	}
}

// Where somebody deletes the first of a secret, and a process that starts makes another, all
// go by that; one that knows it as what is last good gives it back while nobody has.
func TestADeletedSecretPartsNobody(t *testing.T) {
	ctx, etcd := t.Context(), startEtcd(t)
	dir := t.TempDir()
	running, err := secrets.Watch(ctx, etcd.open(dir), "pages")
	check(t, err)
	etcd.raw(func(e *clientv3.Client) error {
		_, err := e.Delete(ctx, "/millrace/test/secrets/pages")
		return err
	})
	fresh, err := secrets.Watch(ctx, etcd.open(""), "pages")
	check(t, err)
	await(t, "the running one goes by it", running.Changed, func() bool {
		return slices.EqualFunc(running.Current(), fresh.Current(), func(a, b secrets.Generation) bool { return bytes.Equal(a.Secret, b.Secret) })
	})
	again, err := secrets.Watch(ctx, etcd.open(dir), "pages")
	check(t, err)
	if !bytes.Equal(again.Current()[0].Secret, fresh.Current()[0].Secret) {
		t.Error("who starts again has the former")
	}
}
