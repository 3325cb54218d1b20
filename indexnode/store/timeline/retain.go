package timeline

import (
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// Keeper is retention as it stands at one point of the log. Of a timeline it
// keeps the first MaxCount records that are not older than the floor nor than
// the horizon. All three move only with the log and never bring a record back,
// so that what is kept is a function of the log, while the space of the rest
// is reclaimed, whole blobs from the tail, whenever it suits. What is dropped
// but still there is treated as absent.
type Keeper struct {
	Horizon millrace.Time // the oldest time that is kept
	Count   int           // 0 keeps all
}

func (k Keeper) keepsAll() bool { return k.Count == 0 && k.Horizon == math.MinInt64 }

// Dropped reports whether retention has dropped a record that is there.
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

// Excludes reports whether a record that is not there has no place.
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

// records counts the records that are there.
func (t *Timeline) records() int { return t.newerThan(0, 0) + t.countOf(0) }

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

// newerThan counts the records in front of the n-th newest of a blob.
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

// SetFloor is called before a record leaves its place. When as many are kept
// as may be, the last of them becomes the floor, lest those behind it come
// back.
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

// expiry counts what retention drops.
type expiry interface {
	ExpireBlob(b *blob.Blob) error
}

// Trim drops the tail blobs that hold nothing kept, and returns their digest.
// They are read for the counts alone. It does nothing unless the chain is
// loaded. Their id rows stay until the sweep.
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
