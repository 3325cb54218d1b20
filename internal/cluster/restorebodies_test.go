package cluster_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/restoration"
)

// tests are the experiments of a cluster whose etcd goes back, as its processes follow them.
func (p *past) tests() (all []*artefacts.Kind) {
	p.t.Helper()
	for _, c := range p.runs {
		a, err := artefacts.Watch(p.t.Context(), c, "experiments")
		check(p.t, err)
		all = append(all, a)
	}
	return all
}

// serve lets a version serve, and waits until all who run keep its bytes.
func (p *past) serve(a *artefacts.Kind, name, body string) artefacts.Version {
	p.t.Helper()
	v, _, err := a.Publish(p.t.Context(), name, "", []byte(body), "ann")
	check(p.t, err)
	check(p.t, a.Serve(p.t.Context(), v, nil, "ann"))
	for i, dir := range p.dirs {
		await(p.t, "its bytes are kept though nobody reads them", func() <-chan struct{} { return closedAfter(p.t) }, func() bool {
			_, err := os.Stat(bytesIn(dir, v))
			return err == nil || p.runs[i] == nil
		})
	}
	return v
}

func bytesIn(dir string, v artefacts.Version) string {
	return filepath.Join(dir, "bodies-experiments", v.Sum)
}

// without copies a directory but for the bytes of some versions.
func without(t *testing.T, dir string, gone ...artefacts.Version) string {
	t.Helper()
	kept := filepath.Join(t.TempDir(), "kept")
	check(t, os.CopyFS(kept, os.DirFS(dir)))
	for _, v := range gone {
		check(t, os.Remove(bytesIn(kept, v)))
	}
	return kept
}

// Directories that have a pointer and not the bytes are refused, and the answer says who
// has them. Who goes on all the same gets what served before, and nothing that has no
// bytes.
func TestARestorationLetsNothingServeWithoutItsBytes(t *testing.T) {
	t.Parallel()
	for _, emptied := range []bool{false, true} {
		ctx, p := t.Context(), newPast(t)
		a := p.tests()
		p.serve(a[0], "ranker", "one")
		backup := p.etcd.backed()
		two := p.serve(a[0], "ranker", "two")
		late := p.serve(a[0], "late", "late")
		poor := without(t, p.dirs[0], two, late)
		p.stop(0)
		if backup(); emptied {
			p.etcd.stop()
			p.etcd.empty()
			p.etcd.start()
			p.etcd.open("")
		}
		await(t, "the loss is noticed", a[1].Changed, func() bool { return p.runs[1].Lost() != nil })
		p.told("experiments")
		err := second(restoration.Restore(ctx, p.etcd.command(), poor))
		refused(t, err, restoration.ErrOlderDirs, "nor in etcd: experiments late 1 (they are kept in ")
		if !strings.Contains(err.Error(), "experiments ranker 2 (they are kept in ") || !strings.Contains(err.Error(), ":"+p.dirs[1]+")") {
			t.Errorf("it does not say where: %v", err)
		}
		whole, err := artefacts.Watch(ctx, p.etcd.open(""), "experiments")
		check(t, err)
		if v := whole.Serving()["ranker"]; v == two {
			t.Error("a restoration that was refused has put its pointer")
		}
		r, err := restoration.RestoreOlder(ctx, p.etcd.command(), poor)
		want := []restoration.Lost{{Version: "experiments late 1", Now: "no version"}, {Version: "experiments ranker 2", Now: "version 1"}}
		if check(t, err); !slices.Equal(r.Lost, want) || r.Lacks != nil {
			t.Errorf("restored %+v", r)
		}
		await(t, "it is taken over", a[1].Changed, func() bool {
			serving := a[1].Serving()
			return a[1].Fault() == nil && len(serving) == 1 && serving["ranker"].Version == "1"
		})
		check(t, whole.Settle(ctx))
		if body, err := whole.Body(ctx, a[1].Serving()["ranker"]); string(body) != "one" {
			t.Errorf("%q, %v", body, err)
		}
	}
}

// bare takes the bytes of a version from etcd.
func (p *past) bare(kind string, v artefacts.Version) {
	p.t.Helper()
	p.etcd.raw(func(e *clientv3.Client) error {
		_, err := e.Delete(p.t.Context(), "/millrace/test/bodies/"+kind+"/"+v.Name+"/"+v.Sum, clientv3.WithPrefix())
		return err
	})
}

// generation is that of etcd's keyspace.
func (p *past) generation() (text string) {
	p.t.Helper()
	p.etcd.raw(func(e *clientv3.Client) error {
		got, err := e.Get(p.t.Context(), "/millrace/test/keyspace")
		if err == nil && len(got.Kvs) > 0 {
			text = string(got.Kvs[0].Value)
		}
		return err
	})
	return text
}

// A pointer without its bytes is not held: who restores from directories that have them
// brings them, though etcd has lost nothing else. Nobody has anything else to take over
// then, so that it is the same keyspace, under the same assignment; and what a directory
// knows that is gone since does not come back with them.
func TestARestorationBringsBytesAlone(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), newPast(t)
	a := p.tests()
	v := p.serve(a[0], "ranker", "one")
	p.now["gone"] = p.write("gone")
	p.heard()
	stale := without(t, p.dirs[0])
	poor := without(t, p.dirs[0], v)
	check(t, p.docs[0].Delete(ctx, "gone"))
	fresh, err := artefacts.Watch(ctx, p.etcd.open(""), "experiments")
	check(t, err)
	if bare, err := fresh.Bare(ctx); bare != nil {
		t.Errorf("bare: %v, %v", bare, err)
	}
	p.bare("experiments", v)
	if bare, err := fresh.Bare(ctx); err != nil || !slices.Equal(bare, []artefacts.Version{v}) {
		t.Errorf("bare: %v, %v", bare, err)
	}
	_, err = fresh.Body(ctx, v)
	refused(t, err, artefacts.ErrNoBytes, "the bytes of experiment ranker 1 are not in etcd; millrace cluster restore --data ")
	refused(t, second(restoration.Restore(ctx, p.etcd.command(), poor)), restoration.ErrOlderDirs, "experiments ranker 1 (a directory that has them has a file bodies-experiments/"+v.Sum+")")
	before := p.generation()
	r, err := restoration.Restore(ctx, p.etcd.command(), poor, stale)
	if check(t, err); r.Lost != nil || r.Documents != nil || !r.Alone || r.Epoch != 1 || len(r.Bytes) != 1 || r.Bytes[0].Document != "experiments ranker" || !slices.Equal(r.Bytes[0].Versions, []string{"1"}) || r.Bytes[0].Dir != stale {
		t.Errorf("restored %+v", r)
	}
	if now := p.generation(); now != before || before == "" {
		t.Errorf("keyspace %q, and %q before", now, before)
	}
	if body, err := fresh.Body(ctx, v); string(body) != "one" {
		t.Errorf("%q, %v", body, err)
	}
	delete(p.now, "gone")
	if docs := documentsOf(t, p.etcd.open("")).Current(); len(docs) > 0 {
		t.Errorf("there are %v", docs)
	}
	p.heard()
	if _, err := restoration.Restore(ctx, p.etcd.command(), p.dirs...); err != restoration.ErrNothingLost {
		t.Errorf("again: %v", err)
	}
}

// That nothing is lost is not said while etcd lacks bytes: neither of a kind that no
// directory knows, nor of a version that does not serve. Nothing is dropped for that,
// unless it is meant.
func TestNothingIsLostIsNotSaidOfLostBytes(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), newPast(t)
	a := p.tests()
	one := p.serve(a[0], "ranker", "one")
	two := p.serve(a[0], "ranker", "two")
	packs, err := artefacts.Watch(ctx, p.etcd.open(""), "models") // which no directory follows
	check(t, err)
	pack, _, err := packs.Publish(ctx, "rate", "", []byte("pack"), "ann")
	check(t, err)
	check(t, packs.Serve(ctx, pack, nil, "ann"))
	restored := func(dirs ...string) error {
		t.Helper()
		return second(restoration.Restore(ctx, p.etcd.command(), dirs...))
	}
	if err := restored(p.dirs...); err != restoration.ErrNothingLost {
		t.Errorf("of a whole etcd: %v", err)
	}
	p.bare("models", pack)
	refused(t, restored(p.dirs...), restoration.ErrOlderDirs, "nor in etcd: models rate 1 (a directory that has them has a file bodies-models/"+pack.Sum+")")
	_, _, err = packs.Publish(ctx, "rate", "1", []byte("pack"), "ann")
	if check(t, err); restored(p.dirs...) != restoration.ErrNothingLost {
		t.Error("what is put again is missed")
	}
	p.bare("experiments", one)
	poor := without(t, p.dirs[0], one)
	refused(t, restored(poor), restoration.ErrOlderDirs, "It lacks the bytes of versions that do not serve, and so do these directories; nothing is restored: experiments ranker 1 (")
	fresh, err := artefacts.Watch(ctx, p.etcd.open(""), "experiments")
	check(t, err)
	if !fresh.Has(one) {
		t.Error("a restoration that was refused has dropped it")
	}
	r, err := restoration.RestoreOlder(ctx, p.etcd.command(), poor)
	if check(t, err); !slices.Equal(r.Lacks, []string{"experiments ranker 1"}) || !r.Alone || r.Bytes != nil || r.Dropped != 1 {
		t.Errorf("restored %+v", r)
	}
	check(t, fresh.Settle(ctx))
	if v, _ := fresh.Served("ranker"); fresh.Has(one) || v != two {
		t.Errorf("%v serves; %v", v, fresh.All())
	}
}

// A version whose bytes are gone does not come to serve, which is told as such; who
// publishes it again puts them back, also in place of others.
func TestAVersionWithoutBytesDoesNotServe(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), &past{t: t, etcd: startEtcd(t)}
	a, err := artefacts.Watch(ctx, p.etcd.open(""), "experiments")
	check(t, err)
	one, two := p.serve(a, "ranker", "one"), p.serve(a, "ranker", "two") // which nobody keeps
	for name, lose := range map[string]func(){
		"gone":    func() { p.bare("experiments", one) },
		"damaged": func() { p.etcd.put("/millrace/test/bodies/experiments/ranker/"+one.Sum+"/000", "eno") },
	} {
		lose()
		_, err := a.Rollback(ctx, "ranker", "ann")
		if name == "gone" {
			refused(t, err, artefacts.ErrNoBytes, "the bytes of experiment ranker 1 are not in etcd")
		}
		if v, _ := a.Served("ranker"); name == "gone" && v != two {
			t.Errorf("%s: %v serves", name, v)
		}
		if v, fresh, err := a.Publish(ctx, "ranker", "", []byte("one"), "ann"); fresh || v != one {
			t.Errorf("%s: %v, %v, %v", name, v, fresh, err)
		}
		fresh, err := artefacts.Watch(ctx, p.etcd.open(""), "experiments")
		check(t, err)
		check(t, fresh.Settle(ctx))
		if body, err := fresh.Body(ctx, one); string(body) != "one" {
			t.Errorf("%s: %q, %v", name, body, err)
		}
		check(t, a.Serve(ctx, two, nil, "ann"))
	}
}
