package backup

import (
	"path/filepath"
	"testing"
)

// The bucket of a lost cluster that another has adopted keeps its backups, for
// the one and the next, and is that one's alone.
func TestAdopt(t *testing.T) {
	dir := t.TempDir()
	lost, heir, second := Identity{"prod", "1"}, Identity{"prod", "2"}, Identity{"prod-2", "3"}
	open := func() *Bucket {
		b, err := Open(t.Context(), "file://"+filepath.ToSlash(dir), Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	first := open()
	if err := first.Claim(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	ref, _, err := first.Put(t.Context(), []byte("schemas"), nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &Manifest{Partition: 7, Node: "a", Log: "k", Applied: Offsets{-1, -1}, Schemas: ref}
	if err := first.WriteManifest(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for _, who := range []Identity{heir, second} {
		b := open()
		if err := b.Claim(t.Context(), who); err == nil {
			t.Errorf("%v claims it without adopting it", who)
		}
		if err := b.Adopt(t.Context(), who); err != nil {
			t.Fatal(err)
		}
		for _, b := range []*Bucket{b, open()} {
			if err := b.Claim(t.Context(), who); err != nil {
				t.Error(err)
			}
			if got, err := b.Manifest(t.Context(), 7, m.ID); err != nil || got.Cluster != lost {
				t.Errorf("%v reads the backup of %v: %v", who, lost, err)
			}
			if _, err := b.Verify(t.Context(), DepthOpen, func(d *Damage) { t.Error(d) }); err != nil {
				t.Error(err)
			}
		}
	}
	if err := open().Claim(t.Context(), lost); err == nil {
		t.Error("the lost cluster may still back up there")
	}
	if u, err := open().Usage(t.Context()); err != nil || u.Files != 1 || u.Bytes != ref.Size {
		t.Errorf("usage %+v, %v", u, err)
	}
}
