package replica

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/schemas"
)

// A record whose schema has not come holds its own partition back and no other,
// however long it takes, and is applied when the schema comes: nothing is
// refused by a clock.
func TestUnknownSchemaHoldsOnePartition(t *testing.T) {
	w := newWorld(t)
	w.start(partHere, partThere)
	w.until("both are ready", func() bool { return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() })
	late, err := schemas.Parse([]byte(`{"type":"record","name":"Late","fields":[
		{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},
		{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}]}`))
	must(t, err)
	body, err := late.EncodeJSON([]byte(`{"id":"late","who":"member:1","kind":"post","at":1700000000000}`))
	must(t, err)
	w.post(here)
	w.write(here, schemas.Frame(late.Fingerprint(), body))
	w.post(here)
	w.until("it is held back, behind the record before", func() bool {
		return w.is(partHere, Stale, SchemaUnknown)() && w.replicas.Of(partHere).Applied()[0] == 1
	})
	w.posts(3, there)
	w.until("the other partition goes on", func() bool { return w.count(there) == 3 && w.is(partThere, Ready, "")() })
	if n := w.letters.tried.Load(); n > 0 || w.count(here) != 1 {
		t.Fatalf("%d dead letters, %d records before the schema came", n, w.count(here))
	}
	_, err = w.schemas.Admit(late)
	must(t, err)
	w.log.move()
	w.until("all is applied", func() bool { return w.count(here) == 3 && w.is(partHere, Ready, "")() })
	if n := w.letters.tried.Load(); n > 0 {
		t.Errorf("%d dead letters", n)
	}
}

// A schema that comes has what is held back tried at once, and not when it is due.
func TestASchemaThatComesWakesIngest(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	log := askedLog{&schemaLog{moved: make(chan struct{})}, make(chan struct{})}
	f.all.cfg.SchemaLog = log
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.all.ingest.wakeForSchemas(ctx) }()
	<-log.asked
	log.move()
	<-log.asked // for the next
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !f.all.ingest.mu.woken {
		t.Errorf("woken %v; it ends with %v", f.all.ingest.mu.woken, err)
	}
}

// askedLog says when it has been asked.
type askedLog struct {
	*schemaLog
	asked chan struct{}
}

func (l askedLog) Moved() <-chan struct{} {
	moved := l.schemaLog.Moved()
	l.asked <- struct{}{}
	return moved
}

// What an operator has refused for good is refused on every replica, whenever
// it reads that.
func TestRefusedSchemaIsDeadLettered(t *testing.T) {
	w := newWorld(t)
	w.write(here, schemas.Frame(0x1234, []byte{1, 2, 3}))
	w.post(here)
	w.start(partHere)
	w.until("it is held back", w.is(partHere, CatchingUp, SchemaUnknown))
	w.log.refuse(0x1234)
	w.until("it is refused, and the rest applied", func() bool {
		return w.letters.count() == 1 && w.count(here) == 1 && w.is(partHere, Ready, "")()
	})
}

// While what is refused cannot be kept, its partition waits, no other does, and
// the process lives.
func TestDeadLettersThatCannotBeKeptHoldThePartition(t *testing.T) {
	w := newWorld(t)
	w.letters.broken.Store(true)
	w.start(partHere, partThere)
	w.write(here, []byte("poison"))
	w.post(here)
	w.until("its partition is held back and tried again", func() bool {
		why, _ := w.replicas.Of(partHere).Why()
		return why.Reason == DeadLetters && w.letters.tried.Load() > 2
	})
	w.post(there)
	w.until("the other goes on", func() bool { return w.count(there) == 1 })
	if at := w.replicas.Of(partHere).Applied()[0]; at != 0 {
		t.Fatalf("the offset went to %d past what is not kept", at)
	}
	w.letters.broken.Store(false)
	w.until("the letter is kept and the rest applied", func() bool { return w.letters.count() == 1 && w.count(here) == 1 && w.is(partHere, Ready, "")() })
	if got := string(w.letters.kept[0].Value); got != "poison" {
		t.Errorf("the dead letter is %q", got)
	}
	if n := w.host.refused.Load(); n != 1 {
		t.Errorf("one record was refused %d times", n)
	}
}

// A full disk holds everything back and loses nothing.
func TestFullDiskHoldsAndHeals(t *testing.T) {
	w := newWorld(t)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	full := time.Now()
	w.disk.full.Store(true)
	w.posts(5, here)
	w.until("it is held back, and says so", w.is(partHere, Stale, DiskFull))
	_, since := w.replicas.Of(partHere).Why()
	if w.until("it is tried again", func() bool { return time.Since(since) > 2*retryAfter }); since.Before(full) {
		t.Errorf("full since %v, and held since %v", full, since)
	}
	if _, now := w.replicas.Of(partHere).Why(); !now.Equal(since) {
		t.Errorf("held since %v, and %v later", since, now)
	}
	w.disk.full.Store(false)
	w.until("all is applied", func() bool { return w.count(here) == 5 && w.is(partHere, Ready, "")() })
}

// A replica that begins behind the beginning of the log has a hole, and never
// answers.
func TestHoleIsNeverReady(t *testing.T) {
	w := newWorld(t)
	w.posts(4, here)
	w.trim(partHere, 2)
	w.start(partHere, partThere)
	w.until("the hole is told", w.is(partHere, Quarantined, LogBeginsLater))
	w.until("the other is ready", w.is(partThere, Ready, ""))
}

// A log that is cut while a node is away leaves a hole, also when something was
// applied before.
func TestHoleAfterARestart(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.start(partHere)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 })
	w.stop()
	w.posts(4, here)
	w.trim(partHere, 3)
	w.start(partHere)
	w.until("the hole is told", w.is(partHere, Quarantined, LogBeginsLater))
}

// A log that is trimmed behind a healthy replica is told: the replica has what
// nobody can read again.
func TestATrimmedLogIsToldOfHealthyReplicas(t *testing.T) {
	w := newWorld(t)
	w.posts(3, here)
	w.start(partHere, partThere)
	w.until("they are ready", func() bool {
		return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() && w.count(here) == 3
	})
	w.trim(partHere, 2)
	w.until("the loss is told", func() bool { return w.replicas.Of(partHere).Irreplaceable().Reason == LogTrimmed })
	if why := w.replicas.Of(partThere).Irreplaceable(); why.Reason != "" {
		t.Errorf("of a log that is whole: %v", why)
	}
	w.until("it is ready all the same", w.is(partHere, Ready, ""))
}

// trim has Kafka delete what is before an offset.
func (w *world) trim(p millrace.Partition, before int64) {
	w.t.Helper()
	var to kadm.Offsets
	to.AddOffset(w.topics.Timeline, int32(p), before, -1)
	done, err := w.adm.DeleteRecords(w.ctx, to)
	must(w.t, err)
	must(w.t, done.Error())
}

// A topic that is created anew and grows past the stored offsets is another
// log.
func TestRecreatedTopicQuarantines(t *testing.T) {
	for _, running := range []bool{false, true} {
		w := newWorld(t)
		w.posts(2, here)
		w.start(partHere)
		w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 2 })
		if !running {
			w.stop()
		}
		_, err := w.adm.DeleteTopic(w.ctx, w.topics.Timeline)
		must(t, err)
		_, err = w.adm.CreateTopic(w.ctx, 720, 1, nil, w.topics.Timeline)
		must(t, err)
		w.connect()
		w.posts(6, here)
		if !running {
			w.start(partHere)
		}
		w.until("it is quarantined", w.is(partHere, Quarantined, OtherLog))
		if n := w.count(here); n != 2 {
			t.Errorf("running %v: %d records, of another log", running, n)
		}
		w.stop()
	}
}

// Without Kafka a node starts with what it has on disk, flagged as old, and is
// ready again by itself.
func TestStartsWithoutKafka(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.start(partHere)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 })
	w.stop()
	away := w.away()
	w.start(partHere, partThere)
	w.until("it answers as stale", w.is(partHere, Stale, KafkaAway))
	if age := w.replicas.Age(partHere, time.Now()); age == 0 {
		t.Error("its answers are not flagged")
	}
	if s := w.replicas.Of(partThere).State(); s.Answers() {
		t.Errorf("a partition of which there is nothing answers as %s", s)
	}
	away.Store(false)
	w.post(here)
	w.until("it is ready, with what came meanwhile", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 2 })
}

// A replica is ready only as long as the end of the log is confirmed: nothing
// heard is no evidence.
func TestCutOffFromKafkaIsStale(t *testing.T) {
	w := newWorld(t)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.until("it is not flagged as old", func() bool { return w.replicas.Age(partHere, time.Now()) == 0 })
	away := w.away()
	w.until("it is stale", w.is(partHere, Stale, KafkaAway))
	answering, old, _ := w.replicas.Answering(time.Now())
	if !answering.Has(partHere) || !old.Has(partHere) {
		t.Error("it does not answer as an old one")
	}
	away.Store(false)
	w.until("it is ready again", w.is(partHere, Ready, ""))
}

// Partitioners that bring nothing to the log make every replica old, however
// well it reads the log.
func TestStalledInputIsStale(t *testing.T) {
	w := newWorld(t)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.input.through.Store(time.Now().Add(-time.Minute).UnixMilli())
	w.until("it is stale", w.is(partHere, Stale, InputStalled))
	w.input.through.Store(time.Now().Add(time.Minute).UnixMilli())
	w.until("it is ready again", w.is(partHere, Ready, ""))
}

// What partitioners have brought to the log after they stood still is not applied
// yet when they say so: a replica stays old until it has reached an end of the
// log that was asked for after that.
func TestBroughtIsNotApplied(t *testing.T) {
	w := newWorld(t)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.input.through.Store(time.Now().Add(-time.Minute).UnixMilli())
	w.until("it is stale", w.is(partHere, Stale, InputStalled))
	away := w.away() // no end is told from here on
	said := time.Now().Add(time.Minute)
	w.input.through.Store(said.UnixMilli())
	w.until("it is heard", func() bool { return w.replicas.through.Load() == said.UnixMilli() })
	if w.replicas.Age(partHere, time.Now()) == 0 {
		t.Error("it takes itself for fresh before it has applied what was brought")
	}
	away.Store(false)
	w.until("it is ready again", w.is(partHere, Ready, ""))
}

// The first word of partitioners is no evidence either that what they brought
// is applied.
func TestTheFirstHeartbeatIsNoEvidence(t *testing.T) {
	w := newWorld(t)
	w.input.through.Store(0)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.until("it is not flagged as old without partitioners", func() bool { return w.replicas.Age(partHere, time.Now()) == 0 })
	away := w.away() // no end is told from here on
	w.input.through.Store(time.Now().Add(time.Minute).UnixMilli())
	w.until("it is heard", func() bool { return w.replicas.through.Load() > 0 })
	if w.replicas.Age(partHere, time.Now()) == 0 {
		t.Error("it takes itself for fresh before it has applied what was brought")
	}
	away.Store(false)
	w.until("it is fresh", func() bool { return w.replicas.Age(partHere, time.Now()) == 0 })
}

// Partitioners that have proven nothing yet are not the same as none: what came
// in may wait for them.
func TestNothingProvenIsStale(t *testing.T) {
	w := newWorld(t)
	w.input.through.Store(0)
	w.input.unproven.Store(true)
	w.start(partHere)
	w.until("it is stale", w.is(partHere, Stale, InputStalled))
	if age := w.replicas.Age(partHere, time.Now()); age != UnknownAge {
		t.Errorf("it is flagged as %s old", age)
	}
	w.input.through.Store(time.Now().Add(time.Minute).UnixMilli())
	w.until("it is ready", w.is(partHere, Ready, ""))
}

// The first proof is heard as it comes, and not at the next look at the log.
func TestTheFirstProofIsHeardAsItComes(t *testing.T) {
	w := newWorld(t)
	w.limit = time.Hour
	w.input.through.Store(0)
	w.input.unproven.Store(true)
	w.input.moved = make(chan struct{})
	w.start(partHere)
	w.until("it has read the log, and nothing is proven", func() bool {
		return w.replicas.replicas[partHere].through.Load() == 1 && w.replicas.Age(partHere, time.Now()) == UnknownAge
	})
	w.input.through.Store(time.Now().UnixMilli())
	close(w.input.moved)
	w.until("it is fresh", func() bool { return w.replicas.Age(partHere, time.Now()) == 0 })
}

// An answer is as old as what it read, though the replica has caught up before
// it is sent.
func TestALookKeepsItsAge(t *testing.T) {
	w := newWorld(t)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.input.through.Store(time.Now().Add(-time.Minute).UnixMilli())
	w.until("it is stale", w.is(partHere, Stale, InputStalled))
	before := w.replicas.Look(partHere)
	w.input.through.Store(time.Now().Add(time.Minute).UnixMilli())
	w.until("it is ready again", w.is(partHere, Ready, ""))
	if age := w.replicas.AgeOf(&before, time.Now()); age < time.Minute {
		t.Errorf("what was read a minute late is flagged as %s old", age)
	}
	w.until("what is read now is not flagged as old", func() bool {
		after := w.replicas.Look(partHere)
		return w.replicas.AgeOf(&after, time.Now()) == 0
	})
}

// A partition that is assigned elsewhere answers until brokers have heard of
// it, and one that comes back goes on where it was.
func TestDrain(t *testing.T) {
	w := newWorld(t)
	w.drain = time.Hour
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.want()
	w.until("it drains", w.is(partHere, Draining, Moved))
	w.post(here)
	w.until("it goes on reading", func() bool { return w.count(here) == 1 })
	w.want(partHere)
	w.until("it is ready again", w.is(partHere, Ready, ""))
}

func TestDrainsEnd(t *testing.T) {
	w := newWorld(t)
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.want()
	w.until("it is gone", w.is(partHere, Absent, ""))
}

// Where the store lost what was not flushed and nobody writes, the replica is read
// again from there by itself.
func TestAnIdleReplicaOfARewoundStoreIsReadAgain(t *testing.T) {
	w := newWorld(t)
	var broken atomic.Bool
	w.disk.FS = unreadable(w.disk.FS, &broken)
	w.post(here)
	w.start(partHere)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 1 })
	must(t, w.store.Flush())
	w.post(here)
	w.until("the next is applied", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 2 })
	at := w.store.Applied(partHere)
	broken.Store(true)
	var b store.Batch
	b.PutFeatures(partHere, here, store.Features{Subject: string(here), Version: 1})
	if _, err := w.store.Apply(&b, nil); !errors.Is(err, store.ErrRewound) {
		t.Fatalf("the store says %v", err)
	}
	broken.Store(false)
	w.until("it is found", func() bool { return w.host.forgotten.Load() > 0 })
	w.until("it is ready again", w.is(partHere, Ready, ""))
	if got := w.store.Applied(partHere); got != at || w.count(here) != 2 {
		t.Errorf("at %v with %d records, and was at %v", got, w.count(here), at)
	}
}

// A corrupt partition is dropped and read anew from the log, where that reaches;
// otherwise it stays out of service and says what to do.
func TestCorruptPartitionIsReadAnew(t *testing.T) {
	w := newWorld(t)
	w.posts(3, here)
	w.post(there)
	w.start(partHere, partThere)
	w.until("both are ready", func() bool { return w.count(here) == 3 && w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() })
	w.replicas.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	if w.replicas.Of(partHere).State().Answers() {
		t.Fatal("it answers")
	}
	w.until("it is ready again, with all", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 3 })
	if w.host.forgotten.Load() == 0 {
		t.Error("the caches keep what was corrupt")
	}
	w.trim(partThere, 1)
	w.replicas.Condemn(partThere, Why{Corrupt, "a flipped bit"})
	w.until("it says why it is not read anew", func() bool {
		why, _ := w.replicas.Of(partThere).Why()
		return w.is(partThere, Quarantined, Corrupt)() && strings.Contains(why.Detail, "timeline/"+strconv.Itoa(int(partThere))+" begins at 1")
	})
}
