package timeline

import (
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// Keeper is retention at one point of the log. Of a timeline it keeps the newest Count
// records, but none that is older than Horizon or older than the floor of the chain (see
// blob.Floor). Horizon and floor move only with the log, and never bring a record back, so
// what is kept is a function of the log. Records that are not kept count as absent, even while
// they are still there: their space is reclaimed later, in whole blobs from the oldest on.
type Keeper struct {
	Horizon millrace.Time // the oldest time that is kept; math.MinInt64 keeps all
	Count   int           // how many records are kept; 0 keeps all
}

func (k Keeper) keepsAll() bool { return k.Count == 0 && k.Horizon == math.MinInt64 }

// Dropped reports whether retention does not keep a record that is there.
func (k Keeper) Dropped(t *Timeline, at Place) (bool, error) {
	if at.Rec.Time < k.Horizon {
		return true, nil
	}
	if k.Count == 0 {
		return false, nil
	}
	if err := t.LoadChain(); err != nil {
		return false, err
	}
	if t.Chain != nil && t.Chain.Floor.Under(at.Rec.Time, at.Rec.ID) {
		return true, nil
	}
	return t.newerThan(at.link, at.blob.Count()-1-at.index) >= k.Count, nil
}

// Excludes reports whether retention would not keep a record that the timeline does not have,
// if it were added.
func (k Keeper) Excludes(t *Timeline, r *millrace.Record) (bool, error) {
	if r.Time < k.Horizon {
		return true, nil
	}
	if k.Count == 0 || t.Head == nil {
		return false, nil
	}
	if err := t.LoadChain(); err != nil {
		return false, err
	}
	if t.Chain != nil && t.Chain.Floor.Under(r.Time, r.ID) {
		return true, nil
	}
	if t.records() < k.Count {
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
	return t.newerThan(i, n) >= k.Count, nil
}

// records counts the records that are there. The chain must be loaded.
func (t *Timeline) records() int { return t.newerThan(0, 0) + t.countOf(0) }

// countOf returns how many records the blob of the i-th link has. If there are no links, or i
// is inHead, it returns how many the head has.
func (t *Timeline) countOf(i int) int {
	if i < 0 || len(t.Links()) == 0 {
		return t.Count()
	}
	return int(t.Chain.Links[i].Count)
}

// Count returns how many records the head has.
func (t *Timeline) Count() int {
	if t.Head == nil {
		return 0
	}
	return t.Head.Count()
}

// newerThan returns how many records of the timeline are newer than a given record. The given
// record is in the blob of the i-th link, or in the head if i is inHead, and n records of the
// same blob are newer.
func (t *Timeline) newerThan(i, n int) int {
	links := t.Links()
	if i == inHead || len(links) == 0 {
		return n
	}
	n += t.Count()
	for _, l := range links[i+1:] {
		n += int(l.Count)
	}
	return n
}

// SetFloor is called before a record is removed or moves. If the timeline has Count records or
// more, the oldest record that is kept becomes the floor. Without a floor, an older record
// would be kept in place of the one that leaves, and so come back.
func (k Keeper) SetFloor(t *Timeline) error {
	if k.Count == 0 {
		return nil
	}
	if err := t.LoadChain(); err != nil {
		return err
	}
	if t.records() < k.Count {
		return nil
	}
	b, skip := t.Head, k.Count-1
	for i := len(t.Links()); skip >= b.Count(); {
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
	if last.Time < k.Horizon || t.Chain != nil && t.Chain.Floor.Under(last.Time, last.ID) {
		return nil
	}
	if err := t.makeChain(); err != nil {
		return err
	}
	if !t.Head.HasChain() {
		t.Head.SetHasChain(true)
		t.headDirty = true
	}
	t.Chain.Floor = &blob.Floor{Time: last.Time, ID: millrace.RecordID(append([]byte(nil), last.ID...))}
	t.chainDirty = true
	return nil
}

// expiry counts what retention drops. ExpireBlob gets each blob that is dropped, and its error
// ends the work.
type expiry interface {
	ExpireBlob(b *blob.Blob) error
}

// Trim drops the oldest older blobs, as long as they have no record which is kept, and returns
// the sum of their digests. It reads them only so that n can count them. It does nothing if the
// chain is not loaded. The id rows of the blobs stay until Sweep.
func (k Keeper) Trim(t *Timeline, n expiry) (dropped uint64, err error) {
	if k.keepsAll() {
		return 0, nil
	}
	for len(t.Links()) > 0 {
		l := t.Chain.Links[0]
		under := t.Chain.Floor != nil && l.Newest < t.Chain.Floor.Time
		if l.Newest >= k.Horizon && !under && (k.Count == 0 || t.newerThan(0, 0) < k.Count) {
			break
		}
		b, err := t.BlobAt(&l)
		if err == nil {
			err = n.ExpireBlob(b)
		}
		if err != nil {
			return dropped, err
		}
		dropped += l.Digest
		t.Chain.Stale += l.Count
		t.unlink(0)
	}
	return dropped, nil
}
