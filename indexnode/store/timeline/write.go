package timeline

import (
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Write adds the changed rows of the timeline to a batch.
func (t *Timeline) Write(b *pebble.Batch) error {
	var err error
	set := func(key, value []byte) {
		if err == nil {
			err = b.Set(key, value, nil)
		}
	}
	drop := func(key []byte) {
		if err == nil {
			err = b.Delete(key, nil)
		}
	}
	if t.gone {
		err = b.DeleteRange(append(slices.Clone(t.Prefix), PartHead), append(slices.Clone(t.Prefix), PartID+1), nil)
	}
	switch {
	case !t.headDirty:
	case t.Head.Count() == 0 && !t.Head.HasChain():
		drop(HeadKey(t.Prefix))
	default:
		set(HeadKey(t.Prefix), t.Head.Buf)
	}
	if t.chainDirty {
		set(ChainKey(t.Prefix), t.Chain.Encode(nil))
	}
	if t.seenDirty {
		set(filterKey(t.Prefix), t.Seen.Encode())
	}
	for suffix, blob := range t.older {
		set(OlderKey(t.Prefix, suffix), blob.Buf)
	}
	for _, suffix := range t.dead {
		drop(OlderKey(t.Prefix, suffix))
	}
	for id, row := range t.ids {
		if row.present {
			set(idKey(t.Prefix, id), row.encode())
		} else {
			drop(idKey(t.Prefix, id))
		}
	}
	return err
}

// Written is called when what Write added is on disk. The timeline then has no changes, and
// forgets the older blobs and id rows that it has in memory.
func (t *Timeline) Written() {
	t.headDirty, t.chainDirty, t.seenDirty = false, false, false
	t.older, t.dead, t.ids, t.olderBytes = nil, nil, nil, 0
}

// Little reports whether the timeline need not stay in memory once it is written: it has no
// records, or was erased since it was read. After it was erased it must not stay, since Written
// does not reset gone, and the next Write would delete its rows again.
func (t *Timeline) Little() bool { return t.gone || t.Head == nil || t.Head.Count() == 0 }
