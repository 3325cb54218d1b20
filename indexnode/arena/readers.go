package arena

import (
	"math/rand/v2"
	"sync/atomic"
)

// shards is the number of counters over which readers spread, so that processors do not
// pull one cache line back and forth.
const shards = 32

// firstEpoch is the epoch of a new arena. It is larger than 2, since the code subtracts up
// to 2 from an epoch.
const firstEpoch = 3

// readers counts the readers by shard and parity of their epoch.
//
// In epoch e only readers of e and of e-1 can be reading: e+1 begins when those of
// e-1 have left, and uses their counters. A reader that has counted itself and
// then finds that another epoch has begun may be in the wrong counter. It takes itself out
// and tries again; until then it only delays the next epoch.
type readers struct {
	epoch  atomic.Uint64
	_      [7]uint64 // so that counts begins on another cache line
	counts [shards]struct {
		of [2]atomic.Int64 // by the epoch modulo 2
		_  [6]uint64       // so that each shard is a cache line
	}
}

// any reports whether an epoch has readers, or another one of the same parity.
func (r *readers) any(epoch uint64) bool {
	for i := range r.counts {
		if r.counts[i].of[epoch%2].Load() != 0 {
			return true
		}
	}
	return false
}

// Reader may read blocks between [Arena.Enter], which makes it, and Leave.
type Reader struct{ count *atomic.Int64 }

// Enter begins a read: blocks that the caller finds from now on are not freed until Leave.
func (a *Arena) Enter() Reader {
	shard := rand.Uint32() % shards
	for {
		if r, ok := a.readers.enter(shard, a.readers.epoch.Load()); ok {
			return r
		}
	}
}

// enter counts a reader of an epoch. It is not ok if another epoch has begun.
func (r *readers) enter(shard uint32, epoch uint64) (Reader, bool) {
	count := &r.counts[shard].of[epoch%2]
	count.Add(1)
	if r.epoch.Load() != epoch {
		count.Add(-1)
		return Reader{}, false
	}
	return Reader{count}, true
}

// Leave ends the read. The blocks that were found must not be touched any more.
func (r Reader) Leave() { r.count.Add(-1) }
