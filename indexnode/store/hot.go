package store

import "github.com/millrace/millrace"

// hotHeads are timelines of a partition as they are on disk. A head that was
// written lately is likely to get the next record soon, and to read it again from
// the store costs more than all else that a record does. The partition's lock
// guards them: readers share it, and change nothing.
type hotHeads struct {
	timelines map[millrace.Timeline]*timeline
	bytes     int64
}

// take takes a timeline out, to be changed, or returns nil.
func (h *hotHeads) take(s *Store, name millrace.Timeline) *timeline {
	t := h.timelines[name]
	if t != nil {
		h.drop(s, t)
	}
	return t
}

// drop lets go of one.
func (h *hotHeads) drop(s *Store, t *timeline) {
	delete(h.timelines, t.name)
	h.add(s, -int64(t.memory()))
}

func (h *hotHeads) add(s *Store, bytes int64) {
	h.bytes += bytes
	s.hot.Add(bytes)
}

// shrink lets go of so many bytes, of any timelines: those that are written now are
// more likely to be asked for than those that were not changed since.
func (h *hotHeads) shrink(s *Store, bytes int64) {
	for _, t := range h.timelines {
		if bytes <= 0 {
			return
		}
		bytes -= int64(t.memory())
		h.drop(s, t)
	}
}

// keep keeps timelines that were written just now, as far as there is room.
func (h *hotHeads) keep(s *Store, written map[millrace.Timeline]*timeline) {
	if h.timelines == nil && len(written) > 0 && s.opts.MaxHotBytes > 0 {
		h.timelines = make(map[millrace.Timeline]*timeline, len(written))
	}
	for name, t := range written {
		if t.gone || t.head == nil || t.head.Count() == 0 {
			continue // little is left of it
		}
		t.written()
		size := int64(t.memory())
		if s.hot.Load()+size > s.opts.MaxHotBytes {
			return
		}
		h.timelines[name] = t
		h.add(s, size)
	}
}

// crowded returns the part of what is kept that has to go, so that there is room for
// what is to be flushed.
func (s *Store) crowded() float64 {
	hot := s.hot.Load()
	return min(1, float64(hot+s.dirty.Load()-s.opts.MaxHotBytes)/float64(max(1, hot)))
}

// clear lets go of all.
func (h *hotHeads) clear(s *Store) {
	h.add(s, -h.bytes)
	h.timelines = nil
}

// written says that the timeline is on disk as it is here. What it has of its older
// blobs and of ids outside the head is read from there again.
func (t *timeline) written() {
	t.headDirty, t.chainDirty, t.seenDirty = false, false, false
	t.older, t.dead, t.ids, t.olderBytes = nil, nil, nil, 0
}

// known returns a timeline that is in memory, or nil.
func (p *part) known(name millrace.Timeline) *timeline {
	if t := p.timelines[name]; t != nil {
		return t
	}
	return p.hot.timelines[name]
}
