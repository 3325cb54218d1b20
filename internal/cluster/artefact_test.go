package cluster_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// refused holds an error to be a typed refusal with a way out.
func refused(t *testing.T, err, is error, says string) {
	t.Helper()
	var e *millrace.Error
	if !errors.Is(err, is) || !errors.As(err, &e) || e.WayOut == "" || !strings.Contains(err.Error(), says) {
		t.Fatalf("%v; want %v that says %q", err, is, says)
	}
}

// TestArtefactVersionsNeverChange: the same version with other bytes is
// refused, with the same bytes it is no change, and numbers only rise.
func TestArtefactVersionsNeverChange(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), startEtcd(t).open("")
	a, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	one, fresh, err := a.Publish(ctx, "likes", "1", []byte("one"), "ann")
	if check(t, err); !fresh || one.Version != "1" || len(a.Serving()) != 0 {
		t.Fatalf("%v, %v; serving %v", one, fresh, a.Serving())
	}
	again, fresh, err := a.Publish(ctx, "likes", "1", []byte("one"), "bob")
	if check(t, err); fresh || again != one {
		t.Fatalf("the same bytes again are %v, %v", again, fresh)
	}
	_, _, err = a.Publish(ctx, "likes", "1", []byte("other"), "bob")
	refused(t, err, artefacts.ErrOtherBytes, "likes 1")
	_, _, err = a.Publish(ctx, "likes", "1b", []byte("one"), "bob")
	refused(t, err, artefacts.ErrOtherBytes, "version 1")
	check(t, a.Drop(ctx, one, nil, "ann"))
	_, _, err = a.Publish(ctx, "likes", "1", []byte("other"), "bob")
	refused(t, err, artefacts.ErrOtherBytes, "likes 1")
	if all := a.All(); len(all) != 0 {
		t.Fatalf("after the drop there is %v", all)
	}
	events, err := a.History(ctx, "likes")
	if check(t, err); len(events) != 2 || events[0].What != ledger.Published || events[0].Who != "ann" || events[1].What != ledger.Dropped {
		t.Fatalf("history %v", events)
	}
	for i, body := range []string{"a", "b", "b", "c"} {
		v, _, err := a.Publish(ctx, "feed", "", []byte(body), "ann")
		if check(t, err); v.Version != []string{"1", "2", "2", "3"}[i] {
			t.Errorf("%s got number %s", body, v.Version)
		}
	}
	for _, version := range []string{"a b", strings.Repeat("x", 101), "\x00"} {
		if _, _, err := a.Publish(ctx, "likes", version, []byte("x"), "ann"); err == nil {
			t.Errorf("version %q was taken", version)
		}
	}
	if _, _, err := a.Publish(ctx, "likes", "9", make([]byte, 33<<20), "ann"); err == nil {
		t.Error("33 MiB were taken")
	}
}

// TestArtefactPointerMoves: serve, roll back, and what is in use stays.
func TestArtefactPointerMoves(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), startEtcd(t).open("")
	a, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	var v []artefacts.Version
	for i := range 3 {
		one, _, err := a.Publish(ctx, "likes", fmt.Sprint(i+1), []byte{byte(i)}, "ann")
		check(t, err)
		check(t, a.Serve(ctx, one, nil, "ann"))
		v = append(v, one)
	}
	serves := func(want artefacts.Version) {
		t.Helper()
		if got, ok := a.Served("likes"); !ok || got != want {
			t.Fatalf("%v serves, want %v", got, want)
		}
	}
	serves(v[2])
	refused(t, a.Serve(ctx, v[0], &v[1], "ann"), artefacts.ErrMoved, `has changed meanwhile: version 3 serves now, in place of version `)
	refused(t, a.Serve(ctx, artefacts.Version{Name: "likes", Version: "7", Sum: v[0].Sum}, nil, "ann"), artefacts.ErrNoVersion, "7")
	back, err := a.Rollback(ctx, "likes", "bob")
	if check(t, err); back != v[1] {
		t.Fatalf("rolled back to %v", back)
	}
	serves(v[1])
	refused(t, a.Drop(ctx, v[1], nil, "bob"), artefacts.ErrInUse, "serves")
	check(t, a.Drop(ctx, v[0], nil, "bob"))
	_, err = a.Rollback(ctx, "likes", "bob")
	refused(t, err, artefacts.ErrNoVersion, "served before")
	check(t, a.Drop(ctx, v[2], nil, "bob"))
	uses := func(_ artefacts.Version, serves bool) []string {
		if serves {
			return []string{"feed likely", "experiment fresher"}
		}
		return nil
	}
	refused(t, a.Drop(ctx, v[1], uses, "bob"), artefacts.ErrInUse, "model likes 2 is in use by feed likely, experiment fresher")
	check(t, a.Drop(ctx, v[1], nil, "bob"))
	if _, ok := a.Served("likes"); ok {
		t.Error("what was dropped serves")
	}
	if _, err := a.Body(ctx, v[1]); !errors.Is(err, artefacts.ErrNoVersion) {
		t.Errorf("the body of a dropped one: %v", err)
	}
	events, err := a.History(ctx, "likes")
	check(t, err)
	var what []string
	for _, e := range events {
		what = append(what, string(e.What)+e.Version)
	}
	if got := strings.Join(what, " "); got != "put1 serve1 put2 serve2 put3 serve3 rollback2 drop1 drop3 drop2" {
		t.Errorf("history %s", got)
	}
}

// TestArtefactsAreBounded: a hundred and more versions leave the last ones,
// what serves, and no bytes of others.
func TestArtefactsAreBounded(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	a, err := artefacts.Watch(ctx, etcd.open(""), "feeds")
	check(t, err)
	first, _, err := a.Publish(ctx, "f", "", []byte("first"), "ann")
	check(t, err)
	check(t, a.Serve(ctx, first, nil, "ann"))
	for i := range 120 {
		_, _, err := a.Publish(ctx, "f", "", fmt.Appendf(nil, "body %d", i), strings.Repeat("é", 1000))
		check(t, err)
	}
	all := a.All()["f"]
	if len(all) != 32 || all[0] != first || all[31].Version != "121" {
		t.Fatalf("%d versions, %v", len(all), all)
	}
	events, err := a.History(ctx, "f")
	if check(t, err); len(events) != 100 {
		t.Errorf("%d events", len(events))
	}
	etcd.raw(func(e *clientv3.Client) error {
		got, err := e.Get(ctx, "/millrace/test/bodies/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err == nil && len(got.Kvs) != 32 {
			t.Errorf("%d bodies are left", len(got.Kvs))
		}
		return err
	})
}

// Who is refused after they wrote bytes leaves none; what others publish at that time
// stays, as does what has served.
func TestRefusedPublicationsLeaveNoBytes(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	a, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	b, err := artefacts.Watch(ctx, etcd.open(""), "models")
	check(t, err)
	bodies := func() (all []string) {
		etcd.raw(func(e *clientv3.Client) error {
			got, err := e.Get(ctx, "/millrace/test/bodies/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
			for _, kv := range got.Kvs {
				all = append(all, string(kv.Key))
			}
			return err
		})
		return all
	}
	for i := range 32 { // so that there is no room, and who publishes is asked what to drop
		_, _, err := a.Publish(ctx, "m", "", fmt.Appendf(nil, "body %d", i), "ann")
		check(t, err)
	}
	other := []byte("bob's")
	asked, before := false, bodies()
	a.Spare(func(artefacts.Version) bool {
		if !asked { // its bytes are written, and its ledger is not
			asked = true
			mine := bodies()
			_, _, err := b.Publish(ctx, "m", "33", other, "bob")
			check(t, err)
			for _, key := range mine { // as if it had written them only now
				if !slices.Contains(before, key) {
					etcd.raw(func(e *clientv3.Client) error { _, err := e.Put(ctx, key, "ann's"); return err })
				}
			}
		}
		return false
	}, nil)
	_, _, err = a.Publish(ctx, "m", "33", []byte("ann's"), "ann")
	refused(t, err, artefacts.ErrOtherBytes, "33")
	check(t, a.Settle(ctx))
	all := a.All()["m"]
	if keys := bodies(); len(keys) != len(all) || len(all) != 32 {
		t.Errorf("%d bodies are left of %d versions", len(keys), len(all))
	}
	// Nor does who looks at it again since others changed something, and is refused then.
	again := errors.New("it no longer fits")
	tries := 0
	if err := artefacts.Steady(ctx, c, []string{"models"}, func(ctx context.Context) error {
		if tries++; tries == 2 {
			return again
		}
		_, _, err := b.Publish(t.Context(), "other", "1", []byte("other"), "bob")
		check(t, err)
		_, _, err = a.Publish(ctx, "new", "1", []byte("new"), "ann")
		return err
	}); err != again || tries != 2 {
		t.Errorf("%d tries: %v", tries, err)
	}
	if keys := bodies(); len(keys) != len(all)+1 {
		t.Errorf("%d bodies are left of %d versions", len(keys), len(all)+1)
	}
	for i, v := range all[29:] {
		check(t, a.Serve(ctx, v, nil, "ann"))
		if i == 2 {
			_, err = a.Rollback(ctx, "m", "ann")
			check(t, err)
		}
	}
	for _, v := range all { // of these one serves, and one did before
		check(t, a.Retract(ctx, v, "ann"))
	}
	if left := a.All()["m"]; len(left) != 2 || len(bodies()) != 3 || left[0] != all[29] || left[1] != all[30] {
		t.Errorf("%v are left", left)
	}
}

// TestWhatNeverServedIsTakenBackUnheard: who is refused after publishing has changed
// nothing that others go by, and asks nobody whether they have heard of it.
func TestWhatNeverServedIsTakenBackUnheard(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	a, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	v, _, err := a.Publish(ctx, "m", "1", []byte("body"), "ann")
	check(t, err)
	check(t, a.Retract(ctx, v, "ann"))
	if got := c.Written(); len(got) > 0 || len(a.All()["m"]) > 0 {
		t.Errorf("%v was written, %v is left", got, a.All()["m"])
	}
	v, _, err = a.Publish(ctx, "m", "2", []byte("another"), "ann")
	check(t, err)
	check(t, a.Drop(ctx, v, nil, "ann")) // by somebody who says so: it may be named by its version
	if got := c.Written(); len(got) != 1 || got[0].Name != "m" {
		t.Errorf("%v was written", got)
	}
}

// TestArtefactsThroughOutages: large bodies are whole for every reader, come
// from disk while etcd is away, and a damaged ledger leaves the last good one.
func TestArtefactsThroughOutages(t *testing.T) {
	t.Parallel()
	ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
	writer, err := artefacts.Watch(ctx, etcd.open(""), "models")
	check(t, err)
	c := etcd.open(dir)
	reader, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	body := noise(1, 5<<19)
	v, _, err := writer.Publish(ctx, "big", "1", body, "ann")
	check(t, err)
	check(t, writer.Serve(ctx, v, nil, "ann"))
	await(t, "the reader has it", reader.Changed, func() bool { got, _ := reader.Served("big"); return got == v })
	got, err := reader.Body(ctx, v)
	if check(t, err); !bytes.Equal(got, body) {
		t.Fatal("the body is another")
	}

	ledger := "/millrace/test/docs/models/big"
	var good string
	etcd.raw(func(e *clientv3.Client) error {
		got, err := e.Get(ctx, ledger)
		if err == nil {
			good = string(got.Kvs[0].Value)
			_, err = e.Put(ctx, ledger, strings.Replace(good, v.Sum, strings.Repeat("0", 64), 1))
		}
		return err
	})
	await(t, "the fault is told", reader.Changed, func() bool { return reader.Fault() != nil })
	if got, _ := reader.Served("big"); got != v || !reader.Has(v) {
		t.Fatalf("the last good one went: %v", got)
	}
	etcd.raw(func(e *clientv3.Client) error { _, err := e.Put(ctx, ledger, good); return err })
	await(t, "the fault is over", reader.Changed, func() bool { return reader.Fault() == nil })

	restarted := etcd.open(dir)
	check(t, c.Close()) // once it has written
	etcd.stop()
	reader, err = artefacts.Watch(ctx, restarted, "models")
	check(t, err)
	if got, _ := reader.Served("big"); got != v {
		t.Fatalf("%v serves from disk", got)
	}
	got, err = reader.Body(ctx, v)
	if check(t, err); !bytes.Equal(got, body) {
		t.Fatal("the body on disk is another")
	}
	// A file that is damaged is not believed.
	file := filepath.Join(dir, "bodies-models", v.Sum)
	damaged := slices.Clone(body)
	damaged[7]++
	check(t, os.WriteFile(file, damaged, 0o644))
	etcd.start()
	await(t, "etcd is back", reader.Changed, func() bool { return reader.Fault() == nil })
	got, err = reader.Body(ctx, v)
	if check(t, err); !bytes.Equal(got, body) {
		t.Fatal("a damaged file was believed")
	}

	// All that etcd had is lost: the directory brings it back.
	assignment, err := topology.Spread([]millrace.NodeID{"n1"}, 1)
	check(t, err)
	assignment.AllowUnknown = true
	check(t, steering.Assign(ctx, restarted, assignment))
	w, err := restarted.Watch(ctx)
	check(t, err)
	await(t, "the map is kept", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	check(t, restarted.Close())
	etcd.stop()
	etcd.empty()
	etcd.start()
	anew := etcd.open("")
	restored, err := restoration.Restore(ctx, anew, dir)
	if check(t, err); len(restored.Documents) != 1 {
		t.Errorf("restored %+v", restored)
	}
	reader, err = artefacts.Watch(ctx, anew, "models")
	check(t, err)
	got, err = reader.Body(ctx, v)
	if check(t, err); !bytes.Equal(got, body) {
		t.Fatal("the restored body is another")
	}
}

// Bytes that are gone are written again by who publishes them again, whatever the
// version. A restoration tells of which versions it found none, and leaves those out
// that do not serve.
func TestBytesThatAreGone(t *testing.T) {
	t.Parallel()
	ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
	cl := etcd.open(dir)
	a, err := artefacts.Watch(ctx, cl, "models")
	check(t, err)
	first, _, err := a.Publish(ctx, "m", "", []byte("first"), "ann")
	check(t, err)
	check(t, a.Serve(ctx, first, nil, "ann"))
	second, _, err := a.Publish(ctx, "m", "", []byte("second"), "ann")
	check(t, err)
	gone := func(v artefacts.Version) {
		t.Helper()
		etcd.raw(func(e *clientv3.Client) error {
			_, err := e.Delete(ctx, "/millrace/test/bodies/models/m/"+v.Sum, clientv3.WithPrefix())
			return err
		})
	}
	for _, again := range []struct {
		v    artefacts.Version
		body string
	}{{first, "first"}, {second, "second"}} { // of an older number, and of the newest
		gone(again.v)
		if v, fresh, err := a.Publish(ctx, "m", "", []byte(again.body), "ann"); v != again.v || fresh || err != nil {
			t.Fatalf("published again: %v, %v, %v", v, fresh, err)
		}
		check(t, a.Serve(ctx, again.v, nil, "ann"))
	}
	for _, v := range []artefacts.Version{first, second} { // to disk
		_, err := a.Body(ctx, v)
		check(t, err)
	}
	assignment, err := topology.Spread([]millrace.NodeID{"n1"}, 1)
	check(t, err)
	assignment.AllowUnknown = true
	check(t, steering.Assign(ctx, cl, assignment))
	w, err := cl.Watch(ctx)
	check(t, err)
	await(t, "the map is kept", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	check(t, cl.Close())
	for _, lost := range []struct {
		v, now artefacts.Version
		served bool
	}{{first, second, false}, {second, first, true}} {
		kept := filepath.Join(t.TempDir(), "kept")
		check(t, os.CopyFS(kept, os.DirFS(dir)))
		check(t, os.Remove(filepath.Join(kept, "bodies-models", lost.v.Sum)))
		etcd.stop()
		etcd.empty()
		etcd.start()
		anew := etcd.open("")
		restored, err := restoration.RestoreOlder(ctx, anew, kept)
		if check(t, err); lost.served && !slices.Equal(restored.Lost, []restoration.Lost{{Version: "models " + lost.v.String(), Now: "version 1"}}) || !lost.served && !slices.Equal(restored.Lacks, []string{"models " + lost.v.String()}) {
			t.Errorf("it lacks %+v", restored)
		}
		a, err := artefacts.Watch(ctx, anew, "models")
		check(t, err)
		if a.Has(lost.v) {
			t.Errorf("%s is there", lost.v)
		}
		if s, _ := a.Served("m"); s != lost.now {
			t.Errorf("%s serves", s)
		}
	}
}

// What is no ledger is told by all who would change it, and goes by a drop; the
// history says by whom, and the name is free.
func TestAnUnreadableLedgerIsDropped(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	a, err := artefacts.Watch(ctx, etcd.open(""), "models")
	check(t, err)
	v, _, err := a.Publish(ctx, "garb", "1", []byte("one"), "ann")
	check(t, err)
	if why, err := a.Unreadable(ctx, "garb"); why != nil || err != nil {
		t.Fatal(why, err)
	}
	etcd.raw(func(e *clientv3.Client) error {
		_, err := e.Put(ctx, "/millrace/test/docs/models/garb", "garbage")
		return err
	})
	await(t, "the fault is told", a.Changed, func() bool { return a.Fault() != nil })
	begins := func() {
		t.Helper()
		fresh, err := artefacts.Watch(ctx, etcd.open(""), "models")
		if check(t, err); !slices.Equal(fresh.Unread(), []string{"garb"}) || len(fresh.Serving()) > 0 {
			t.Errorf("who begins now cannot say what serves of %v, and serves %v", fresh.Unread(), fresh.Serving())
		}
	}
	begins()
	etcd.raw(func(e *clientv3.Client) error {
		_, err := e.Put(ctx, "/millrace/test/docs/models/garb", strings.Repeat("x", keyspace.MaxDocumentBytes+1))
		return err
	})
	begins()
	if _, _, err := a.Publish(ctx, "garb", "2", []byte("two"), "ann"); !errors.Is(err, artefacts.ErrUnreadable) {
		t.Errorf("publish: %v", err)
	}
	if why, err := a.Unreadable(ctx, "garb"); why == nil || err != nil {
		t.Fatal(why, err)
	}
	check(t, a.DropUnreadable(ctx, "garb", "bob"))
	await(t, "the fault is over", a.Changed, func() bool { return a.Fault() == nil })
	events, err := a.History(ctx, "garb")
	if check(t, err); len(events) != 1 || events[0].What != ledger.Dropped || !strings.HasPrefix(events[0].Who, "bob: it could not be read") {
		t.Errorf("history %v", events)
	}
	if a.Has(v) {
		t.Error("its versions are still there")
	}
	again, _, err := a.Publish(ctx, "garb", "1", []byte("one"), "ann")
	if check(t, err); again != v {
		t.Errorf("the name is not free: %v", again)
	}
}

// Versions are published that cannot be taken for one another, or for a flag.
func TestVersionsDoNotLookAlike(t *testing.T) {
	t.Parallel()
	a, err := artefacts.Watch(t.Context(), startEtcd(t).open(""), "models")
	check(t, err)
	for _, version := range []string{"\uff11", "1\u200b", "1\u202e2", "e\u0301", "-1", "--apply", "1 2", ".1", strings.Repeat("1", 101)} {
		if _, _, err := a.Publish(t.Context(), "m", version, []byte(version), "ann"); err == nil || !strings.Contains(err.Error(), "is not the name of a version") {
			t.Errorf("%+q: %v", version, err)
		}
	}
	for _, version := range []string{"1", "2026-11-26", "v1.2+build_3"} {
		if _, _, err := a.Publish(t.Context(), "m", version, []byte(version), "ann"); err != nil {
			t.Errorf("%q: %v", version, err)
		}
	}
}

// A command that etcd leaves while it works waits as long as one that finds none,
// names etcd's addresses, and blames no document.
func TestACallThatIsNotAnsweredNamesEtcd(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{etcd.addr}, Name: "test", Wait: 4 * time.Second, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer c.Close()
	a, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	v, _, err := a.Publish(ctx, "likes", "1", []byte("one"), "ann")
	check(t, err)
	etcd.stop()
	_, reads := a.Body(ctx, v)
	for what, err := range map[string]error{"serve": a.Serve(ctx, v, nil, "ann"), "settle": a.Settle(ctx), "body": reads} {
		if !errors.Is(err, cluster.ErrAway) || !strings.Contains(err.Error(), etcd.addr) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if strings.Contains(reads.Error(), "likes") {
		t.Errorf("the artefact is blamed: %v", reads)
	}
}

// What a process goes by stays on disk until it goes by another, dropped or not.
func TestArtefactsKeepWhatIsUsed(t *testing.T) {
	t.Parallel()
	ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
	a, err := artefacts.Watch(ctx, etcd.open(dir), "models")
	check(t, err)
	serve := func(version string) artefacts.Version {
		v, _, err := a.Publish(ctx, "m", version, []byte("m "+version), "ann")
		check(t, err)
		check(t, a.Serve(ctx, v, nil, "ann"))
		return v
	}
	last := func() map[artefacts.Version][]byte {
		t.Helper()
		c := etcd.open(dir)
		defer c.Close()
		next, err := artefacts.Watch(ctx, c, "models")
		check(t, err)
		return next.LastUsed()
	}
	v1 := serve("1")
	_, err = a.Body(ctx, v1)
	check(t, err)
	a.Use(map[string]artefacts.Version{"m": v1})
	v2 := serve("2")
	check(t, a.Drop(ctx, v1, nil, "ann"))
	if got := last(); string(got[v1]) != "m 1" || len(got) != 1 {
		t.Fatalf("on disk are %q", got)
	}
	_, err = a.Body(ctx, v2)
	check(t, err)
	a.Use(map[string]artefacts.Version{"m": v2})
	if got := last(); string(got[v2]) != "m 2" || len(got) != 1 {
		t.Errorf("on disk are %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "bodies-models", v1.Sum)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is used no more is still there: %v", err)
	}
}

// TestArtefactsChangedByManyAtOnce: every change is there, and none twice.
func TestArtefactsChangedByManyAtOnce(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	var g sync.WaitGroup
	errs := make(chan error, 100)
	for who := range 4 {
		a, err := artefacts.Watch(ctx, etcd.open(""), "feeds")
		check(t, err)
		g.Go(func() {
			for i := range 5 {
				v, fresh, err := a.Publish(ctx, "f", "", fmt.Appendf(nil, "%d of %d", i, who), fmt.Sprint(who))
				if err == nil && !fresh {
					err = fmt.Errorf("%v is not fresh", v)
				}
				if err == nil {
					err = a.Serve(ctx, v, nil, fmt.Sprint(who))
				}
				if err != nil {
					errs <- err
				}
			}
		})
	}
	g.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	a, err := artefacts.Watch(ctx, etcd.open(""), "feeds")
	check(t, err)
	for i, v := range a.All()["f"] {
		if v.Version != fmt.Sprint(i+1) {
			t.Errorf("version %d is %v", i+1, v)
		}
		if _, err := a.Body(ctx, v); err != nil {
			t.Error(err)
		}
	}
	if n := len(a.All()["f"]); n != 20 {
		t.Errorf("%d versions", n)
	}
}

// What is changed by what others are is changed by what they are now, however the
// two are changed at the same time: of the same kind or another, but not of kinds
// that nobody looks at.
func TestArtefactsChangeSteadily(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	kinds := map[string]*artefacts.Kind{}
	serve := func(ctx context.Context, kind, name, body string) error {
		v, _, err := kinds[kind].Publish(ctx, name, "", []byte(body), "somebody")
		if err != nil {
			return err
		}
		return kinds[kind].Serve(ctx, v, nil, "somebody")
	}
	for _, kind := range []string{"feeds", "models", "others"} {
		a, err := artefacts.Watch(ctx, etcd.open(""), kind)
		check(t, err)
		kinds[kind] = a
		check(t, serve(ctx, kind, "a", "first"))
	}
	client := etcd.open("")
	for _, c := range []struct {
		kind, name string // that another changes meanwhile
		looks      int
	}{{"models", "a", 2}, {"models", "new", 2}, {"feeds", "b", 2}, {"others", "a", 1}, {"feeds", "a", 1}} {
		looks := 0
		check(t, artefacts.Steady(ctx, client, []string{"feeds", "models"}, func(steady context.Context) error {
			if looks++; looks == 1 {
				check(t, serve(ctx, c.kind, c.name, "changed for "+c.kind+c.name))
			}
			return serve(steady, "feeds", "a", "after "+c.kind+c.name)
		}))
		if looks != c.looks {
			t.Errorf("while %s %s changes: looked %d times, not %d", c.kind, c.name, looks, c.looks)
		}
		if body, err := kinds["feeds"].Body(ctx, kinds["feeds"].Serving()["a"]); err != nil || string(body) != "after "+c.kind+c.name {
			t.Errorf("%s serves: %v", body, err)
		}
	}
	err := artefacts.Steady(ctx, client, []string{"models"}, func(steady context.Context) error {
		check(t, serve(ctx, "models", "a", rand.Text()))
		return serve(steady, "feeds", "a", "never")
	})
	if !errors.Is(err, artefacts.ErrMoved) {
		t.Errorf("while others change it all the time: %v", err)
	}
	refused := errors.New("refused")
	if err := artefacts.Steady(ctx, client, []string{"models"}, func(context.Context) error { return refused }); err != refused {
		t.Error(err)
	}
}

// A document changes with what serves in one transaction, or neither does.
func TestArtefactServesWithADocument(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	a, err := artefacts.Watch(ctx, c, "experiments")
	check(t, err)
	docs, err := documents.Watch(ctx, c, "decisions")
	check(t, err)
	v, _, err := a.Publish(ctx, "a", "", []byte("1"), "somebody")
	check(t, err)
	at := a.Revision()
	no := errors.New("no")
	if err := a.ServeAt(ctx, v, at, &artefacts.With{Documents: docs, Name: "e", By: func(string) (string, error) { return "", no }}, "somebody"); !errors.Is(err, no) {
		t.Errorf("%v", err)
	}
	others := func(body string) (string, error) { // who are quicker
		check(t, docs.Change(ctx, "e", func(body string) (string, error) { return body + "x", nil }))
		return body + "y", nil
	}
	refused(t, a.ServeAt(ctx, v, at, &artefacts.With{Documents: docs, Name: "e", By: others}, "somebody"), artefacts.ErrMoved, "")
	if _, serves := a.Served("a"); serves {
		t.Error("it serves without its document")
	}
	check(t, a.ServeAt(ctx, v, at, &artefacts.With{Documents: docs, Name: "e", By: func(body string) (string, error) { return body + "y", nil }}, "somebody"))
	await(t, "the document is written", docs.Changed, func() bool { return docs.Current()["e"].Body == "xy" })
	if now := docs.Current()["e"].Version; now != a.Revision() {
		t.Errorf("the document is of %d, and what serves of %d", now, a.Revision())
	}
}

// A version serves only if nothing of its kind has changed since it was looked
// at.
func TestArtefactServesAsItWasSeen(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	a, err := artefacts.Watch(ctx, etcd.open(""), "experiments")
	check(t, err)
	first, _, err := a.Publish(ctx, "a", "", []byte("1"), "somebody")
	check(t, err)
	seen := a.Revision()
	other, _, err := a.Publish(ctx, "b", "", []byte("1"), "somebody")
	check(t, err)
	refused(t, a.ServeAt(ctx, first, seen, nil, "somebody"), artefacts.ErrMoved, "at the same time")
	check(t, a.ServeAt(ctx, first, a.Revision(), nil, "somebody"))
	if v, ok := a.Served("a"); !ok || v != first {
		t.Errorf("%v serves", v)
	}
	seen = a.Revision()
	check(t, a.ServeAt(ctx, other, seen, nil, "somebody"))
	refused(t, a.ServeAt(ctx, other, seen, nil, "somebody"), artefacts.ErrMoved, "at the same time")
	refused(t, a.ServeAt(ctx, artefacts.Version{Name: "b", Version: "7", Sum: "x"}, a.Revision(), nil, "somebody"), artefacts.ErrNoVersion, "")
}
