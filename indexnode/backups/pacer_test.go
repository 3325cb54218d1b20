package backups

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/partition"
)

// Beside questions, backups rest after their work; where nobody asks they do
// not.
func TestBackupsRestBesideQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := false
		p := newPacer(func() bool { was := ask; ask = false; return was })
		ctx, cancel := context.WithCancel(t.Context())
		took := func(worked time.Duration) time.Duration {
			began := time.Now()
			p.pace(ctx, worked)
			return time.Since(began)
		}
		if got := took(time.Millisecond); got != 0 {
			t.Errorf("nobody asks, and it rests %v", got)
		}
		ask = true
		if got := took(time.Millisecond); got != restPerWork*time.Millisecond {
			t.Errorf("after a question it rests %v for a millisecond of work", got)
		}
		if got := took(time.Hour); got != longestRest {
			t.Errorf("after an hour of work it rests %v", got)
		}
		time.Sleep(busyFor)
		if got := took(time.Millisecond); got != 0 {
			t.Errorf("a while after the last question it rests %v", got)
		}
		cancel()
		ask = true
		if got := took(time.Millisecond); got != 0 {
			t.Errorf("nobody waits any more, and it rests %v", got)
		}
	})
}

// A restore that lets questions go first does not wait for those of a round of
// backups that do so, too.
func TestRestoresRestBesideBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(func() bool { return true })
		for range 10 {
			go p.pace(t.Context(), time.Hour)
		}
		synctest.Wait() // one of them rests, and the others wait
		began := time.Now()
		p.rest(t.Context(), p.restores, time.Millisecond)
		if took := time.Since(began); took != time.Millisecond {
			t.Errorf("beside ten backups a restore rests %v", took)
		}
	})
}

// A restore that nobody waits for rests three times as long as it took, but no longer than
// that of a bucket that was slow, and no longer than there are questions.
func TestRestoresRestAsLongAsTheyTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asks atomic.Bool
		asks.Store(true)
		k := &Keeper{pacer: newPacer(asks.Load)}
		for took, want := range map[time.Duration]time.Duration{100 * time.Millisecond: 300 * time.Millisecond, 1500 * time.Millisecond: 4500 * time.Millisecond, time.Hour: longestRestored} {
			began := time.Now()
			k.Rest(t.Context(), took)
			if got := time.Since(began); got != want {
				t.Errorf("after a restore of %v it rests %v, and not %v", took, got, want)
			}
		}
		time.AfterFunc(2*longestRest, func() { asks.Store(false) })
		began := time.Now()
		k.Rest(t.Context(), time.Hour)
		if got := time.Since(began); got > 2*longestRest+busyFor+longestRest {
			t.Errorf("it rests %v, of which nobody asks most of the time", got)
		}
		asks.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(longestRest/2, cancel)
		began = time.Now()
		k.Rest(ctx, time.Hour)
		if got := time.Since(began); got != longestRest/2 {
			t.Errorf("nobody waits any more, and it rests %v", got)
		}
	})
}

// What is kept of an earlier restore is not expected of the next one, which would never
// be done.
func TestSchemasThatAreKeptAreNotExpected(t *testing.T) {
	b := newBench(t)
	b.post(50)
	k := b.keeper(b.store, "a", nil)
	must(t, k.Backup(t.Context()))
	bucket, err := k.bucket(t.Context())
	must(t, err)
	newest, has := newest(t, k, partition.Of("member:1"))
	if !has {
		t.Fatal("there is no backup")
	}
	m, err := bucket.Manifest(t.Context(), partition.Of("member:1"), newest.Name)
	must(t, err)
	for _, want := range []int64{m.Schemas.Size, 0} {
		progress := backup.NewProgress(m.Schemas.Size)
		_, err := k.schemas(t.Context(), bucket.Counted(progress), m.Schemas, progress)
		must(t, err)
		if s := progress.Now(); s.Done != want || s.Total != want {
			t.Errorf("%d of %d bytes are done, and not %d of as many", s.Done, s.Total, want)
		}
	}
}

// A backup looks whether there are questions; a restore, for which somebody
// waits, does not.
func TestRestoresDoNotRest(t *testing.T) {
	b := newBench(t)
	b.post(50)
	looked := 0
	k := b.keeper(b.store, "a", func(c *KeeperConfig) {
		c.Asked = func() bool { looked++; return false }
	})
	must(t, k.Backup(t.Context()))
	if looked == 0 {
		t.Error("a backup did not look for questions")
	}
	looked = 0
	p := partition.Of("member:1")
	newest, has := newest(t, k, p)
	if !has {
		t.Fatal("there is no backup")
	}
	must(t, k.Restore(t.Context(), p, newest, func(string) {}))
	if looked > 2 { // Newest lists, before it is a restore
		t.Errorf("a restore looked for questions %d times", looked)
	}
}

// A backup remembers the store's tables for the next.
func TestABackupRemembersTables(t *testing.T) {
	b := newBench(t)
	b.post(50)
	k := b.keeper(b.store, "a", nil)
	must(t, k.Backup(t.Context()))
	first := k.hashes.Len()
	b.post(1)
	must(t, k.Backup(t.Context()))
	if then := k.hashes.Len(); first == 0 || then <= first {
		t.Errorf("%d tables are known after a full backup, %d after one more record", first, then)
	}
}
