package timeline

import (
	"maps"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// Sweep drops the oldest blobs that have no record which is kept, and the id rows that Trim has
// left. If no record of the timeline is kept, it drops all of it. It returns the sum of the
// digests of the blobs that it dropped.
func (k Keeper) Sweep(t *Timeline, n expiry) (dropped uint64, err error) {
	if t.Head == nil || k.keepsAll() {
		return 0, nil
	}
	if err := t.LoadChain(); err != nil {
		return 0, err
	}
	if dropped, err = k.Trim(t, n); err != nil {
		return dropped, err
	}
	if err := t.sweepIDs(); err != nil || len(t.Links()) > 0 {
		return dropped, err
	}
	f := (*blob.Floor)(nil)
	if t.Chain != nil {
		f = t.Chain.Floor
	}
	if f != nil && f.Time >= k.Horizon {
		return dropped, nil // the floor still keeps older records out
	}
	if t.Head.Count() > 0 {
		if newest, _ := t.Head.Newest(); newest >= k.Horizon {
			return dropped, nil
		}
	}
	if err := n.ExpireBlob(t.Head); err != nil {
		return dropped, err
	}
	dropped += t.Head.Digest()
	t.erase()
	return dropped, nil
}

// sweepIDs removes the id rows of the blobs that Trim has dropped.
func (t *Timeline) sweepIDs() error {
	if t.Chain == nil || t.Chain.Stale == 0 {
		return nil
	}
	rows, err := t.src.IDRows(t.Prefix)
	if err != nil {
		return err
	}
	maps.Copy(rows, t.ids)
	links := t.Links()
	for id, row := range rows {
		if row.present && (len(links) == 0 || row.At < links[0].Oldest) {
			t.setID(id, IDRow{})
		}
	}
	t.Chain.Stale, t.chainDirty = 0, true
	return nil
}

// erase empties the timeline. The next Write deletes all its rows.
func (t *Timeline) erase() {
	*t = Timeline{Name: t.Name, Hash: t.Hash, Prefix: t.Prefix, max: t.max, src: nothing{}, gone: true}
}

// Clean reports whether nothing of the timeline has changed since it was read or written.
func (t *Timeline) Clean() bool {
	return !t.gone && !t.headDirty && !t.chainDirty && !t.seenDirty && len(t.older) == 0 && len(t.dead) == 0 && len(t.ids) == 0
}

// nothing is the source of a timeline whose rows are all to be deleted.
type nothing struct{}

func (nothing) Get([]byte) ([]byte, error)                         { return nil, nil }
func (nothing) IDRows([]byte) (map[millrace.RecordID]IDRow, error) { return nil, nil }
