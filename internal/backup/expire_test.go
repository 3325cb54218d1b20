package backup

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// aged are objects that were all written so much earlier, but for the
// condemnations of this moment.
type aged struct {
	objects.Store
	by  time.Duration
	all bool // the condemnations too: who wrote them is dead
}

func (a aged) List(ctx context.Context, prefix string, each func(objects.Object) error) error {
	return a.Store.List(ctx, prefix, func(o objects.Object) error {
		if a.all || parse(o.Name).kind != isCondemned {
			o.Modified = o.Modified.Add(-a.by)
		}
		return each(o)
	})
}

// all lists a bucket.
func all(t testing.TB, o objects.Store) map[string]int64 {
	t.Helper()
	names := map[string]int64{}
	if err := o.List(t.Context(), "", func(o objects.Object) error { names[o.Name] = o.Size; return nil }); err != nil {
		t.Fatal(err)
	}
	return names
}

// cut makes a cut from the newest backup of every partition, 1 record further.
func cut(ctx context.Context, b *Bucket, name string, tail []byte) (*Cut, error) {
	newest, err := b.Newest(ctx, func(*Damage) {})
	if err != nil {
		return nil, err
	}
	c := &Cut{Name: name, Log: "log", Time: millrace.TimeOf(time.Now()), Content: make([]millrace.Offset, partitions), Features: make([]millrace.Offset, partitions)}
	r, _, err := b.Put(ctx, tail, nil)
	if err != nil {
		return nil, err
	}
	for p := range millrace.Partition(partitions) {
		to := Offsets{newest[p].Applied.Content + 1, newest[p].Applied.Features}
		c.Content[p], c.Features[p] = to.Content, to.Features
		if err := b.WriteCutParts(ctx, name, []*CutPart{{Partition: p, Backup: newest[p].ID, To: to, Tail: r}}); err != nil {
			return nil, err
		}
	}
	return c, b.WriteCut(ctx, c)
}

func TestExpireKeepsTheNewestAndWhatCutsName(t *testing.T) {
	o := memory(t)
	b := claimed(t, o)
	for p := range millrace.Partition(partitions) {
		if _, err := back(t.Context(), b, p, []byte("shared"), []byte(fmt.Sprint("cut ", p))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cut(t.Context(), b, "nightly", []byte("tail")); err != nil {
		t.Fatal(err)
	}
	var first, last *Manifest
	for i := range 5 {
		m, err := back(t.Context(), b, 7, []byte("shared"), []byte(fmt.Sprint("later ", i)))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = m
		}
		last = m
	}
	before := all(t, o)
	if e, err := b.Expire(t.Context(), ExpireOptions{Keep: 2}); err != nil || e.Backups != 3 || e.Files != 0 {
		t.Errorf("within the grace: %+v, %v; want 3 backups and no file", e, err)
	}
	later := impatient(aged{o, 2 * time.Hour, false})
	was := all(t, o)
	if e, err := later.Expire(t.Context(), ExpireOptions{Keep: 2, Dry: true}); err != nil || e.Backups != 0 || e.Files != 3 || e.Bytes != 3*int64(len("later 0")) {
		t.Errorf("past the grace, dry: %+v, %v; want 3 files", e, err)
	}
	if !maps.Equal(was, all(t, o)) {
		t.Error("a dry expiry changes the bucket")
	}
	var told int
	e, err := later.Expire(t.Context(), ExpireOptions{Keep: 2, Report: func(name string, _ int64) {
		told++
		if _, ok := before[name]; !ok || parse(name).kind != isFile {
			t.Errorf("%s was removed", name)
		}
	}})
	if err != nil || e.Backups != 0 || e.Files != 3 || e.Bytes != 3*int64(len("later 0")) || told != 3 || e.Blocked != nil {
		t.Errorf("past the grace: %+v, %v, %d told; want 3 files", e, err, told)
	}
	r, err := b.Verify(t.Context(), DepthOpen, func(d *Damage) { t.Error(d) })
	if err != nil || len(r.Cuts) != 1 || len(r.Backups[7]) != 3 || r.Backups[7][0] != last.ID {
		t.Errorf("restorable %+v, %v", r.Backups[7], err)
	}
	if _, err := b.Manifest(t.Context(), 7, first.ID); !isKind(err, Missing) {
		t.Errorf("the oldest: %v", err)
	}
	only, err := b.OnlyOf(t.Context(), "nightly")
	if err != nil || only.Files != partitions+2 {
		t.Errorf("only the cut needs %+v, %v; want its %d parts, its tail and itself", only, err, partitions)
	}
	if err := b.RemoveCut(t.Context(), "nightly"); err != nil {
		t.Fatal(err)
	}
	if e, err := later.Expire(t.Context(), ExpireOptions{Keep: 2}); err != nil || e.Backups != 1 || e.Files != 2 {
		t.Errorf("without the cut: %+v, %v; want its backup of 7, and that one's file and the tail", e, err)
	}
	for name := range all(t, o) {
		if k := parse(name).kind; k == isCutPart || k == isHold || k == isCondemned {
			t.Errorf("%s is left", name)
		}
	}
	if _, err := b.Expire(t.Context(), ExpireOptions{}); err == nil {
		t.Error("an expiry may leave nothing")
	}
}

// What can't be read may name anything, so that no file goes; it goes itself
// when enough that is good is newer.
func TestExpireSparesWhatDamageMayName(t *testing.T) {
	o := memory(t)
	b := claimed(t, o)
	m, err := back(t.Context(), b, 1, []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	data := must(b.readBytes(t.Context(), manifestName(1, m.ID)))
	data[20] ^= 1
	if err := b.objects.Write(t.Context(), manifestName(1, m.ID), readerOf(data), false); err != nil {
		t.Fatal(err)
	}
	later := impatient(aged{o, 2 * time.Hour, false})
	e, err := later.Expire(t.Context(), ExpireOptions{Keep: 1})
	if err != nil || len(e.Blocked) != 1 || e.Files != 0 {
		t.Errorf("%+v, %v; want it blocked", e, err)
	}
	if _, err := back(t.Context(), b, 1, []byte("b")); err != nil {
		t.Fatal(err)
	}
	if e, err = later.Expire(t.Context(), ExpireOptions{Keep: 1}); err != nil || e.Backups != 1 || e.Files != 1 || e.Blocked != nil {
		t.Errorf("%+v, %v; want the damaged one and its file gone", e, err)
	}
}

// Links are neither followed nor removed, and keep nothing else from going: where
// a file is that nothing names, a backup of long ago, a record beyond those that
// are kept, or a hold. Verify tells them.
func TestExpireLeavesLinks(t *testing.T) {
	root := t.TempDir()
	o := directory(t, root)
	defer o.Close()
	b := claimed(t, o)
	first := must(back(t.Context(), b, 1, []byte("first")))
	for p, file := range map[millrace.Partition]string{1: "last", 2: "other"} {
		must(back(t.Context(), b, p, []byte(file)))
	}
	long := newID(time.Now().Add(-24*time.Hour), "n", "")
	links := []string{
		Ref{SHA256: sha256.Sum256([]byte("none"))}.name(), manifestName(2, long), cutPartName("none", 1),
		holdsPrefix + "none" + objectSuffix, condemnedPrefix + "none" + objectSuffix, objects.Scratch + "/none",
	}
	for _, name := range links {
		at := filepath.Join(root, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.Symlink(root, at)); err != nil {
			t.Fatal(err)
		}
	}
	later := impatient(aged{o, 3 * time.Hour, true})
	e, err := later.Expire(t.Context(), ExpireOptions{Keep: 1})
	if err != nil || e.Backups != 1 || e.Files != 1 || e.Blocked != nil {
		t.Errorf("%+v, %v; want one backup and its file gone", e, err)
	}
	there := all(t, o)
	for _, gone := range []string{manifestName(1, first.ID), first.Files[0].Ref.name()} {
		if _, is := there[gone]; is {
			t.Errorf("%s is left", gone)
		}
	}
	told := map[string]DamageKind{}
	if _, err := b.Verify(t.Context(), 0, func(d *Damage) { told[d.Object] = d.Kind }); err != nil {
		t.Fatal(err)
	}
	for _, name := range links {
		if _, is := there[name]; !is || told[name] != Link {
			t.Errorf("%s is there: %v; verify tells %q", name, is, told[name])
		}
	}
}

// A backup that finds its file condemned waits for the expiry, and then misses it.
func TestBackupWaitsForExpiry(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		m, err := back(t.Context(), b, 1, []byte("old"))
		if err != nil {
			t.Fatal(err)
		}
		old := m.Files[0].Ref
		condemnation, _, err := b.announce(t.Context(), condemnedPrefix, []string{old.name()})
		if err != nil {
			t.Fatal(err)
		}
		looked := make(chan struct{})
		w := impatient(&hooked{Store: o, before: func(op, name string) error {
			if op == "open" && name == condemnation {
				select {
				case looked <- struct{}{}:
				default:
				}
			}
			return nil
		}})
		done := make(chan error, 1)
		go func() { done <- w.WriteManifest(context.WithoutCancel(t.Context()), m) }()
		for range 3 {
			select {
			case <-looked:
			case err := <-done:
				t.Fatalf("it didn't wait: %v", err)
			}
		}
		if err := errors.Join(o.Remove(t.Context(), old.name()), o.Remove(t.Context(), condemnation)); err != nil {
			t.Fatal(err)
		}
		var missing MissingFiles
		if err := <-done; !errors.As(err, &missing) || missing[0] != old {
			t.Errorf("after the expiry: %v", err)
		}
	})
}
