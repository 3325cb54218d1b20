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
		err := second(restoration.Restore(ctx, p.etcd.open(""), poor))
		refused(t, err, restoration.ErrOlderDirs, "nor in etcd: experiments late 1 (they are kept in ")
		if !strings.Contains(err.Error(), "experiments ranker 2 (they are kept in ") || !strings.Contains(err.Error(), ":"+p.dirs[1]+")") {
			t.Errorf("it does not say where: %v", err)
		}
		whole, err := artefacts.Watch(ctx, p.etcd.open(""), "experiments")
		check(t, err)
		if v := whole.Serving()["ranker"]; v == two {
			t.Error("a restoration that was refused has put its pointer")
		}
		r, err := restoration.RestoreOlder(ctx, p.etcd.open(""), poor)
		want := []restoration.Lost{{Version: "experiments late 1", Now: "no version"}, {Version: "experiments ranker 2", Now: "version 1"}}
		if check(t, err); !slices.Equal(r.Lost, want) || r.Lacks != nil {
			t.Errorf("restored %+v", r)
		}
		await(t, "it is taken over", a[1].Changed, func() bool {
			serving := a[1].Serving()
			return a[1].Fault() == nil && len(serving) == 1 && serving["ranker"].Version == "1"
		})
		if body, err := whole.Body(ctx, a[1].Serving()["ranker"]); string(body) != "one" {
			t.Errorf("%q, %v", body, err)
		}
	}
}

// A pointer without its bytes is not held: who restores from directories that have them
// brings them, though etcd has lost nothing else.
func TestARestorationBringsBytesAlone(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), newPast(t)
	a := p.tests()
	v := p.serve(a[0], "ranker", "one")
	poor := without(t, p.dirs[0], v)
	refused := func(err error, says string) {
		t.Helper()
		refused(t, err, restoration.ErrOlderDirs, says)
	}
	p.etcd.raw(func(e *clientv3.Client) error {
		_, err := e.Delete(ctx, "/millrace/test/bodies/experiments/ranker/"+v.Sum, clientv3.WithPrefix())
		return err
	})
	refused(second(restoration.Restore(ctx, p.etcd.open(""), poor)), "experiments ranker 1 (no process that runs has said that it keeps them)")
	r, err := restoration.Restore(ctx, p.etcd.open(""), poor, p.dirs[1])
	if check(t, err); r.Lost != nil || r.Documents != nil {
		t.Errorf("restored %+v", r)
	}
	fresh, err := artefacts.Watch(ctx, p.etcd.open(""), "experiments")
	check(t, err)
	if body, err := fresh.Body(ctx, v); string(body) != "one" {
		t.Errorf("%q, %v", body, err)
	}
	p.kept(r.Epoch)
	if _, err := restoration.Restore(ctx, p.etcd.open(""), p.dirs...); err != restoration.ErrNothingLost {
		t.Errorf("again: %v", err)
	}
}
