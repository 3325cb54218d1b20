package arena

import (
	"math/rand/v2"
	"sync/atomic"
)

// shards is over how many counters readers spread, so that processors do not
// pull one cache line back and forth.
const shards = 32

// firstEpoch leaves room for the epochs before it.
const firstEpoch = 3

// readers counts who reads, by shard and parity of the epoch.
//
// At epoch e only readers of e and of e-1 are there: e+1 begins when those of
// e-1 have left, and takes their counters. A reader who counted itself and
// then finds that the epoch is another has counted in the wrong place, undoes
// it, and tries again; until then it only holds up the next epoch.
type readers struct {
	epoch  atomic.Uint64
	_      [7]uint64
	counts [shards]struct {
		of [2]atomic.Int64
		_  [6]uint64
	}
}

// any reports whether readers of an epoch are there.
func (r *readers) any(epoch uint64) bool {
	for i := range r.counts {
		if r.counts[i].of[epoch%2].Load() != 0 {
			return true
		}
	}
	return false
}

// Reader is someone who may read blocks, between [Arena.Enter] and Leave.
type Reader struct{ count *atomic.Int64 }

// Enter begins to read: what is found from now on stays until Leave.
func (a *Arena) Enter() Reader {
	shard := rand.Uint32() % shards
	for {
		if r, ok := a.readers.enter(shard, a.readers.epoch.Load()); ok {
			return r
		}
	}
}

// enter counts a reader, unless another epoch has begun.
func (r *readers) enter(shard uint32, epoch uint64) (Reader, bool) {
	count := &r.counts[shard].of[epoch%2]
	count.Add(1)
	if r.epoch.Load() != epoch {
		count.Add(-1)
		return Reader{}, false
	}
	return Reader{count}, true
}

// Leave ends to read. What was found must not be touched any more.
func (r Reader) Leave() { r.count.Add(-1) }
