package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
)

// restoreLife is a store of two partitions with an older checkpoint and a newer,
// and a second store to restore to.
type restoreLife struct {
	*ordeal
	mem        *vfs.MemFS
	old, young []Checkpoint
	to         *Store
}

func newRestoreLife(t *testing.T, seed uint64) *restoreLife {
	t.Helper()
	mem := vfs.NewMem()
	l := &restoreLife{ordeal: newOrdeal(seed, mem, 400), mem: mem}
	s := openMem(t, l.opts)
	fill := func() {
		for range 12 {
			l.ingest(s)
			if l.rng.IntN(3) == 0 {
				l.flush(s)
			}
		}
	}
	take := func(dir string) []Checkpoint {
		all, err := s.Checkpoint(ordealPartitions, dir)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	fill()
	l.old = take("old")
	fill()
	if err := s.db.Compact(ctx, []byte{0}, []byte{1}, false); err != nil {
		t.Fatal(err)
	}
	fill()
	l.young = take("young")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	to, err := Open("to", l.opts)
	if err != nil {
		t.Fatal(err)
	}
	l.to = to
	for _, c := range l.old {
		if err := to.Restore("old", c); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// is verifies that a partition is what the log says up to a checkpoint.
func (l *restoreLife) is(c Checkpoint) error {
	if at := l.to.Applied(c.Partition); at != c.Applied {
		return fmt.Errorf("partition %d is at %v, want %v", c.Partition, at, c.Applied)
	}
	return l.compare(l.to, c.Partition, 0)
}

// A checkpoint that is damaged in any way is refused, and then nothing has
// changed, or it makes no difference. The other partition never notices.
func TestADamagedCheckpointIsRefused(t *testing.T) {
	seed := rand.Uint64()
	refused, runs := 0, 0
	kinds := map[string]int{}
	for i := range uint64(4) {
		l := newRestoreLife(t, seed+i)
		for range 60 {
			runs++
			what, taken, err := l.damage(runs)
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed+i, what, err)
			}
			if !taken {
				refused++
				kinds[strings.Fields(what)[0]]++
			}
		}
		if err := l.to.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d damages, %d refused: %v", runs, refused, kinds)
	if refused < runs/2 {
		t.Errorf("only %d of %d damages are refused: are they hitting anything?", refused, runs)
	}
}

// damage restores a damaged copy of the newer checkpoint of a partition. It
// reports whether it was taken.
func (l *restoreLife) damage(run int) (what string, taken bool, err error) {
	i := l.rng.IntN(len(l.young))
	c, old, neighbour := l.young[i], l.old[i], l.old[1-i]
	c.Files = slices.Clone(c.Files)
	dir := fmt.Sprintf("damaged-%d", run)
	if err := l.mem.MkdirAll(dir, 0o755); err != nil {
		return "", false, err
	}
	for _, f := range c.Files {
		if err := vfs.Copy(l.mem, l.mem.PathJoin("young", f.Name), l.mem.PathJoin(dir, f.Name)); err != nil {
			return "", false, err
		}
	}
	what, err = l.harm(dir, &c)
	if err != nil {
		return what, false, err
	}
	err = l.to.Restore(dir, c)
	switch {
	case err == nil:
		// What it is must be what the undamaged one is. Then back again.
		if err := errors.Join(l.is(l.young[i]), l.is(neighbour)); err != nil {
			return what, true, err
		}
		return what, true, l.to.Restore("old", old)
	case !errors.Is(err, ErrRefused) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFailed):
		return what, false, fmt.Errorf("not ErrRefused alone: %w", err)
	}
	return what, false, errors.Join(l.is(old), l.is(neighbour))
}

// harm damages the files of a checkpoint, or what it says.
func (l *restoreLife) harm(dir string, c *Checkpoint) (what string, err error) {
	r := l.rng
	f := &c.Files[r.IntN(len(c.Files))]
	path := l.mem.PathJoin(dir, f.Name)
	// instead puts another file in the place of this one, and says so.
	instead := func(from string, other File) error {
		f.Size = other.Size
		return vfs.Copy(l.mem, l.mem.PathJoin(from, other.Name), path)
	}
	any := func(all []Checkpoint, i int) File { return all[i].Files[r.IntN(len(all[i].Files))] }
	own := slices.Index(ordealPartitions, c.Partition)
	switch r.IntN(20) {
	case 0, 1, 2:
		what, err = flip(r)(l.mem, path)
		return "flip: " + what, err
	case 3:
		what, err = rewriteFile(func(b []byte) ([]byte, string) { // where the footer is
			at := len(b) - 1 - r.IntN(min(len(b), 120))
			b[at] ^= 1 << r.IntN(8)
			return b, "the footer"
		})(l.mem, path)
		return "flip: " + what, err
	case 4:
		what, err = truncate(r)(l.mem, path)
		if r.IntN(2) == 0 {
			info, err := l.mem.Stat(path)
			if err != nil {
				return what, err
			}
			f.Size = info.Size()
		}
		return "cut: " + what, err
	case 5:
		return "remove", l.mem.Remove(path)
	case 6:
		return "foreign file", instead("young", any(l.young, 1-own))
	case 7, 8:
		return "older file", instead("old", any(l.old, own))
	case 9:
		return "same file again", instead("young", any(l.young, own))
	case 10:
		f.Bottom = !f.Bottom
		return "bottom or not", nil
	case 11:
		r.Shuffle(len(c.Files), func(i, j int) { c.Files[i], c.Files[j] = c.Files[j], c.Files[i] })
		return "order", nil
	case 12:
		i := r.IntN(len(c.Files))
		c.Files = slices.Delete(c.Files, i, i+1)
		return "unnamed file", nil
	case 13:
		f.Name = []string{"../young/" + f.Name, "", ".", "..", "/" + f.Name, f.Name + "\x00", "no.sst"}[r.IntN(7)]
		return fmt.Sprintf("name %q", f.Name), nil
	case 14:
		c.Files = append(c.Files, *f)
		return "twice", nil
	case 15:
		f.Size += int64(r.IntN(3)) - 1
		return "size", nil
	case 16:
		c.Applied.Content += millrace.Offset(r.IntN(2)) + 1
		return "offset", nil
	case 17:
		c.Digest.Content++
		return "digest", nil
	case 18:
		c.Clock++
		return "clock", nil
	}
	c.Partition = []millrace.Partition{ordealPartitions[1-own], 5}[r.IntN(2)]
	return "partition", nil
}
