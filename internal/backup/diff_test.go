package backup

import (
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/backup/objects"
)

func TestDiff(t *testing.T) {
	b := claimed(t, newMapped())
	old, err := back(t.Context(), b, 1, []byte("shared"), []byte("gone"))
	if err != nil {
		t.Fatal(err)
	}
	now, err := back(t.Context(), b, 1, []byte("shared"), []byte("more"), []byte("and more"))
	if err != nil {
		t.Fatal(err)
	}
	now.Applied.Content += 5
	schemas := int64(len("schemas")) // shared too
	want := Difference{Shared: Amount{2, 6 + schemas}, New: Amount{2, 12}, Gone: Amount{1, 4}, Content: 5}
	if got := Diff(old, now); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	want = Difference{New: Amount{4, 18 + schemas}, Content: 15, Features: 20}
	if got := Diff(nil, now); got != want {
		t.Errorf("of nothing: %+v, want %+v", got, want)
	}
}

func TestProgress(t *testing.T) {
	for want, s := range map[string]Sample{
		"0 B": {Left: -1}, "1023 B": {Done: 1023, Left: -1}, "1.0 KiB of 1.0 MiB": {Done: 1 << 10, Total: 1 << 20, Left: -1}, "1023.5 KiB of 1.5 GiB, 2.0 TiB/s, 2s left": {Done: 1<<20 - 512, Total: 3 << 29, BytesPerSecond: 2 << 40, Left: 1600 * time.Millisecond},
		"2048.0 TiB of 2048.0 TiB, 1 B/s": {Done: 2 << 50, Total: 2 << 50, BytesPerSecond: 1.5}, "1 B of 2 B, 0s left": {Done: 1, Total: 2},
	} {
		if got := s.String(); got != want {
			t.Errorf("%+v reads %q, want %q", s, got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var none *Progress
		none.Expect(1)
		none.add(1)
		p := NewProgress(100)
		if s := p.Now(); s.Left != -1 || s.BytesPerSecond != 0 {
			t.Errorf("at the start: %+v", s)
		}
		for range 50 {
			time.Sleep(time.Second)
			p.add(1)
		}
		if s := p.Now(); s.Done != 50 || s.BytesPerSecond != 1 || s.Left != 50*time.Second || s.Elapsed != 50*time.Second {
			t.Errorf("half way: %+v", s)
		}
		time.Sleep(time.Hour) // it hangs
		if s := p.Now(); s.BytesPerSecond > 0.01 || s.Left < time.Hour {
			t.Errorf("hanging: %+v", s)
		}
	})
}

func TestDrillsComeBackNewestFirst(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		for p := range millrace.Partition(5) {
			d := &Drill{Time: millrace.TimeOf(time.Now()), Node: "node-1", Partition: p, Backup: "x", Fault: fmt.Sprint(p)}
			if err := b.WriteDrill(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		got, err := b.Drills(t.Context(), 3)
		if err != nil || len(got) != 3 || got[0].Partition != 4 || got[2].Fault != "2" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// Records of damage come back, the newest first, and those beyond the newest go
// with an expiry.
func TestHealingsComeBackNewestFirst(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		for p := range millrace.Partition(3) {
			h := &Healing{Time: millrace.TimeOf(time.Now()), Node: "node-1", Partition: p, Damage: fmt.Sprint(p), From: "x"}
			if err := b.WriteHealing(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
		got, err := b.Healings(t.Context(), 2)
		if err != nil || len(got) != 2 || got[0].Partition != 2 || got[1].Damage != "1" {
			t.Errorf("%+v, %v", got, err)
		}
		if drills, err := b.Drills(t.Context(), 2); err != nil || len(drills) != 0 {
			t.Errorf("as drills: %+v, %v", drills, err)
		}
	})
}

// Partitions that heal together are recorded together, each of them, though their
// records would have one id.
func TestHealingsAtOnceAreAllKept(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		const n = 32
		at := millrace.TimeOf(time.Now())
		if err := b.WriteHealing(t.Context(), &Healing{Time: at, Node: "node-1", Partition: n, Damage: "x"}); err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int64
		all := make(chan struct{})
		b.objects = &hooked{Store: o, before: func(op, name string) error {
			if op == "write" { // once all have looked which records are there
				if asked.Add(1) == n {
					close(all)
				}
				<-all
			}
			return nil
		}}
		var writers sync.WaitGroup
		for p := range millrace.Partition(n) {
			writers.Go(func() {
				if err := b.WriteHealing(t.Context(), &Healing{Time: at, Node: "node-1", Partition: p, Damage: "x"}); err != nil {
					t.Error(p, err)
				}
			})
		}
		writers.Wait()
		got, err := b.Healings(t.Context(), 2*n)
		if err != nil || len(got) != n+1 || got[n].Partition != n {
			t.Fatalf("%d records, %v; want %d, and the first as the oldest", len(got), err, n+1)
		}
		seen := map[millrace.Partition]bool{}
		for _, h := range got {
			seen[h.Partition] = true
		}
		if len(seen) != n+1 {
			t.Errorf("of %d partitions", len(seen))
		}
	})
}

// What is said to be there, and cannot be read yet, is being written by another at this
// moment: a store that is a directory behind a gateway says so for some milliseconds.
func TestARecordThatIsBeingWrittenIsWaitedFor(t *testing.T) {
	store := must(objects.Open(t.Context(), "file://"+t.TempDir(), false))
	b := claimed(t, store)
	at := millrace.TimeOf(time.Now())
	early := 0
	b.objects = &hooked{Store: store, before: func(op, name string) error {
		if early == 0 && op == "write" {
			early++
			return impatient(store).WriteHealing(t.Context(), &Healing{Time: at, Node: "node-1", Partition: 7, Damage: "x"})
		}
		if early == 1 && op == "open" {
			early++
			return fs.ErrNotExist
		}
		return nil
	}}
	if err := b.WriteHealing(t.Context(), &Healing{Time: at, Node: "node-1", Partition: 8, Damage: "x"}); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Healings(t.Context(), 10); err != nil || len(got) != 2 || early != 2 {
		t.Errorf("%d records, %v; read too early %d times", len(got), err, early-1)
	}
}

// Acts come back, the newest first, whosever the bucket was by then, and those
// beyond the newest go with an expiry.
func TestActsComeBackNewestFirst(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		for _, on := range []string{"a", "b", "c"} {
			if err := b.WriteAct(t.Context(), audit.Entry{Who: "somebody @here", Act: "expire", On: on}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Adopt(t.Context(), Identity{Name: "heir", ID: "2"}); err != nil {
			t.Fatal(err)
		}
		got, err := b.Acts(t.Context(), 2)
		if err != nil || len(got) != 2 || got[0].On != "c" || got[1].On != "b" || got[0].Who != "somebody @here" || got[0].Entry.Time.IsZero() {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := b.Verify(t.Context(), DepthMeta, func(d *Damage) { t.Error(d) }); err != nil {
			t.Error(err)
		}
	})
}
