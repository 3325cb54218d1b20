package backup

// Amount is so many files and their bytes.
type Amount struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Difference is what one backup of a partition has beside another.
type Difference struct {
	Shared   Amount `json:"shared"`
	New      Amount `json:"new"`
	Gone     Amount `json:"gone"`
	Content  int64  `json:"timeline"` // how far the offsets moved
	Features int64  `json:"features"`
}

// Diff compares two backups of a partition. A nil old one is empty, so that all
// of the other is new.
func Diff(old, now *Manifest) (d Difference) {
	had, applied := old.Known(), Offsets{}
	if old != nil {
		applied = old.Applied
	}
	for _, r := range now.Refs() {
		if had[r] {
			d.Shared.add(r)
		} else {
			d.New.add(r)
		}
		delete(had, r)
	}
	for r := range had {
		d.Gone.add(r)
	}
	d.Content = int64(max(now.Applied.Content, 0) - max(applied.Content, 0))
	d.Features = int64(max(now.Applied.Features, 0) - max(applied.Features, 0))
	return d
}

func (a *Amount) add(r Ref) {
	a.Files++
	a.Bytes += r.Size
}
