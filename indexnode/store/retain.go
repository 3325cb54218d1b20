package store

import (
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// keeper is retention as it stands at one point of the log. Of a timeline it
// keeps the first MaxCount records that are not older than the floor nor than
// the horizon. All three move only with the log and never bring a record back,
// so that what is kept is a function of the log, while the space of the rest
// is reclaimed, whole blobs from the tail, whenever it suits. What is dropped
// but still there is treated as absent.
type keeper struct {
	horizon millrace.Time // the oldest time that is kept
	count   int           // 0 keeps all
}

func (s *Store) keeper(t millrace.ContentType, clock millrace.Time) keeper {
	r := s.opts.Retention[t]
	k := keeper{horizon: math.MinInt64, count: r.MaxCount}
	if r.MaxAge > 0 {
		k.horizon = clock - millrace.Time(r.MaxAge.Milliseconds())
	}
	return k
}

func (k keeper) keepsAll() bool { return k.count == 0 && k.horizon == math.MinInt64 }

// dropped reports whether retention has dropped a record that is there.
func (k keeper) dropped(t *timeline, at place) (bool, error) {
	if at.rec.Time < k.horizon {
		return true, nil
	}
	if k.count == 0 {
		return false, nil
	}
	if err := t.loadChain(); err != nil {
		return false, err
	}
	if t.chain != nil && t.chain.Floor.Under(at.rec.Time, at.rec.ID) {
		return true, nil
	}
	return t.newerThan(at.link, at.blob.Count()-1-at.index) >= k.count, nil
}

// excludes reports whether a record that is not there has no place.
func (k keeper) excludes(t *timeline, r *millrace.Record) (bool, error) {
	if r.Time < k.horizon {
		return true, nil
	}
	if k.count == 0 || t.head == nil {
		return false, nil
	}
	if err := t.loadChain(); err != nil {
		return false, err
	}
	if t.chain != nil && t.chain.Floor.Under(r.Time, r.ID) {
		return true, nil
	}
	if t.records() < k.count {
		return false, nil
	}
	i, err := t.target(r.Time, r.ID)
	if err != nil {
		return false, err
	}
	b, err := t.blobOf(i)
	if err != nil {
		return false, err
	}
	recs, err := b.DecodeAll(nil)
	if err != nil {
		return false, err
	}
	n := 0
	for n < len(recs) && blob.Newer(recs[len(recs)-1-n].Time, recs[len(recs)-1-n].ID, r.Time, r.ID) {
		n++
	}
	return t.newerThan(i, n) >= k.count, nil
}

// records counts the records that are there.
func (t *timeline) records() int { return t.newerThan(0, 0) + t.countOf(0) }

func (t *timeline) countOf(i int) int {
	if i < 0 || len(t.links()) == 0 {
		return t.headCount()
	}
	return int(t.chain.Links[i].Count)
}

func (t *timeline) headCount() int {
	if t.head == nil {
		return 0
	}
	return t.head.Count()
}

// newerThan counts the records in front of the n-th newest of a blob.
func (t *timeline) newerThan(i, n int) int {
	links := t.links()
	if i == inHead || len(links) == 0 {
		return n
	}
	n += t.headCount()
	for _, l := range links[i+1:] {
		n += int(l.Count)
	}
	return n
}

// setFloor is called before a record leaves its place. When as many are kept
// as may be, the last of them becomes the floor, lest those behind it come
// back.
func (k keeper) setFloor(t *timeline) error {
	if k.count == 0 {
		return nil
	}
	if err := t.loadChain(); err != nil {
		return err
	}
	if t.records() < k.count {
		return nil
	}
	b, skip := t.head, k.count-1
	for i := len(t.links()); skip >= b.Count(); {
		skip -= b.Count()
		i--
		var err error
		if b, err = t.blobOf(i); err != nil {
			return err
		}
	}
	recs, err := b.DecodeAll(nil)
	if err != nil {
		return err
	}
	last := &recs[len(recs)-1-skip]
	if last.Time < k.horizon || t.chain != nil && t.chain.Floor.Under(last.Time, last.ID) {
		return nil
	}
	if err := t.makeChain(); err != nil {
		return err
	}
	if !t.head.HasChain() {
		t.head.SetHasChain(true)
		t.headDirty = true
	}
	t.chain.Floor = &blob.Floor{Time: last.Time, ID: millrace.RecordID(append([]byte(nil), last.ID...))}
	t.chainDirty = true
	return nil
}

// trim drops the tail blobs that hold nothing kept, and returns their digest.
// They are read for the counts alone. It does nothing unless the chain is
// loaded. Their id rows stay until the sweep.
func (k keeper) trim(t *timeline, n *typeTally) (dropped uint64, err error) {
	if k.keepsAll() {
		return 0, nil
	}
	for len(t.links()) > 0 {
		l := t.chain.Links[0]
		under := t.chain.Floor != nil && l.Newest < t.chain.Floor.Time
		if l.Newest >= k.horizon && !under && (k.count == 0 || t.newerThan(0, 0) < k.count) {
			break
		}
		b, err := t.blobAt(&l)
		if err == nil {
			err = n.expireBlob(b)
		}
		if err != nil {
			return dropped, err
		}
		dropped += l.Digest
		t.chain.Stale += l.Count
		t.unlink(0)
	}
	return dropped, nil
}
