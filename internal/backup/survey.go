package backup

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// survey is all that a bucket has, without the bytes of files.
type survey struct {
	manifests []*found[Manifest] // by partition, the newest first
	parts     []*found[CutPart]
	cuts      []*found[Cut]
	holds     []*found[names]
	files     map[Hash]objects.Object
	others    []objects.Object // condemnations, drills, healings, acts, scratch; not read
	unknown   []objects.Object // objects with names that this package never writes
}

// found is a JSON object that was listed, and what came of reading it: a value or a damage.
// Both are nil until it is read.
type found[T any] struct {
	objects.Object
	place
	value  *T
	hash   Hash // of its bytes
	damage *Damage
}

// survey surveys the bucket. It lists holds before manifests, and manifests before files,
// so that it sees a backup that is written meanwhile by its hold, its manifest, or both.
func (b *Bucket) survey(ctx context.Context) (*survey, error) {
	s := &survey{files: map[Hash]objects.Object{}}
	if err := s.rewrite(ctx, b, nil); err != nil {
		return nil, err
	}
	return s, b.objects.List(ctx, "", func(o objects.Object) error {
		switch at := parse(o.Name); at.kind {
		case isFile:
			s.files[at.hash] = o
		case isCondemned, isDrill, isHealing, isAct, isScratch:
			s.others = append(s.others, o)
		case isUnknown:
			s.unknown = append(s.unknown, o)
		}
		return nil
	})
}

// rewrite lists and reads holds, cuts, parts of cuts and manifests: those with a name for
// which seen returns false, or all if seen is nil.
func (s *survey) rewrite(ctx context.Context, b *Bucket, seen func(string) bool) error {
	for _, prefix := range []string{holdsPrefix, cutsPrefix, manifestsPrefix} {
		err := b.objects.List(ctx, prefix, func(o objects.Object) error {
			if seen == nil || !seen(o.Name) {
				s.sort(o)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	slices.SortFunc(s.manifests, func(x, y *found[Manifest]) int {
		if x.partition != y.partition {
			return int(x.partition) - int(y.partition)
		}
		return strings.Compare(y.place.id, x.place.id)
	})
	return errors.Join(
		readAll(ctx, &s.manifests, func(ctx context.Context, f *found[Manifest]) (*Manifest, Hash, error) {
			return b.manifest(ctx, f.partition, f.place.id)
		}),
		readAll(ctx, &s.parts, func(ctx context.Context, f *found[CutPart]) (*CutPart, Hash, error) {
			return b.cutPart(ctx, f.place.id, f.partition)
		}),
		readAll(ctx, &s.cuts, func(ctx context.Context, f *found[Cut]) (*Cut, Hash, error) {
			c, err := b.Cut(ctx, f.place.id)
			if objects.IsMissing(err) {
				err = &Damage{Object: f.Name, Kind: Missing, Detail: "it went since the list"}
			}
			return c, Hash{}, err
		}),
		readAll(ctx, &s.holds, func(ctx context.Context, f *found[names]) (*names, Hash, error) {
			var n names
			h, err := b.readOurs(ctx, f.Name, &n, &n.Cluster)
			return &n, h, err
		}),
	)
}

// sort adds a listed object to the list of its kind, unread.
func (s *survey) sort(o objects.Object) {
	switch at := parse(o.Name); at.kind {
	case isManifest:
		s.manifests = append(s.manifests, &found[Manifest]{Object: o, place: at})
	case isCutPart:
		s.parts = append(s.parts, &found[CutPart]{Object: o, place: at})
	case isCut:
		s.cuts = append(s.cuts, &found[Cut]{Object: o, place: at})
	case isHold:
		s.holds = append(s.holds, &found[names]{Object: o, place: at})
	}
}

// readAll reads the objects of all that were not read yet, and takes out those that were
// removed since they were listed.
func readAll[T any](ctx context.Context, all *[]*found[T], read func(context.Context, *found[T]) (*T, Hash, error)) error {
	_, err := parallel(ctx, *all, func(ctx context.Context, f *found[T]) (struct{}, error) {
		if f.value != nil || f.damage != nil {
			return struct{}{}, nil
		}
		v, h, err := read(ctx, f)
		switch {
		case errors.As(err, &f.damage):
		case err != nil:
			return struct{}{}, err
		default:
			f.value, f.hash = v, h
		}
		return struct{}{}, nil
	})
	*all = slices.DeleteFunc(*all, func(f *found[T]) bool { return f.damage != nil && f.damage.Kind == Missing })
	return err
}

// reach marks names, and with each all that it leads to: from a cut to its parts, from a
// part to its backup and tail, from a backup to its files.
type reach struct {
	names     map[string]bool      // those that are marked
	manifests map[string]*Manifest // by name, those that could be read
	parts     map[string]*CutPart  // by name, those that could be read
}

// reach returns a reach that has marked nothing yet.
func (s *survey) reach() *reach {
	r := &reach{names: map[string]bool{}, manifests: map[string]*Manifest{}, parts: map[string]*CutPart{}}
	r.learn(s)
	return r
}

// learn adds the manifests and parts that a survey has read, to be followed by mark.
func (r *reach) learn(s *survey) {
	for _, f := range s.manifests {
		if f.value != nil {
			r.manifests[f.Name] = f.value
		}
	}
	for _, f := range s.parts {
		if f.value != nil {
			r.parts[f.Name] = f.value
		}
	}
}

// mark marks the name of a manifest, a part or a file, and all that it leads to.
func (r *reach) mark(name string) {
	r.names[name] = true
	if m := r.manifests[name]; m != nil {
		for _, ref := range m.Refs() {
			r.names[ref.name()] = true
		}
	}
	if p := r.parts[name]; p != nil {
		r.mark(manifestName(p.Partition, p.Backup))
		if !p.Tail.IsZero() {
			r.names[p.Tail.name()] = true
		}
	}
}

// markCut marks a cut and all that it leads to.
func (r *reach) markCut(name string) {
	r.mark(cutName(name))
	for p := range partitions {
		r.mark(cutPartName(name, millrace.Partition(p)))
	}
}
