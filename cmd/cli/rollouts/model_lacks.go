package rollouts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
)

// lacked is what no node has found in records of a content type.
type lacked struct {
	records int // that all nodes looked at
	fields  []string
}

// lacksOf joins what nodes found: what one of them found, is there.
func (r *rollout) lacksOf(v cluster.Version) map[string]*lacked {
	types := map[string]*lacked{}
	for _, all := range r.heard.Current() {
		for _, a := range all {
			if !a.Of(v) {
				continue
			}
			for _, l := range a.Lacks {
				of := types[l.Type]
				if of == nil {
					types[l.Type] = &lacked{l.Records, l.Fields}
					continue
				}
				of.records += l.Records
				of.fields = slices.DeleteFunc(slices.Clone(of.fields), func(f string) bool { return !slices.Contains(l.Fields, f) })
			}
		}
	}
	maps.DeleteFunc(types, func(_ string, of *lacked) bool { return len(of.fields) == 0 })
	return types
}

// tellLacks tells which fields that a version reads no live record has anything
// in, by content type and by the feeds that show it and name the model. It
// refuses nothing: records that have them may be on their way.
func (r *rollout) tellLacks(ctx context.Context, v cluster.Version) error {
	types := r.lacksOf(v)
	if len(types) == 0 {
		return nil
	}
	feeds, err := r.feeds.definitions(ctx)
	if err != nil {
		return err
	}
	for _, t := range slices.Sorted(maps.Keys(types)) {
		of := types[t]
		where := ""
		if names := feedsRanking(feeds, v.Name, t); len(names) > 0 {
			where = " (feed " + strings.Join(names, ", feed ") + ")"
		}
		fmt.Fprintf(r.out, "note: no %s%s of %d that index nodes looked at has anything in record.%s\n", t, where, of.records, strings.Join(of.fields, ", record."))
	}
	return nil
}

// feedsRanking returns the feeds that have a model rank records of a type, for
// viewers or as a shadow.
func feedsRanking(all map[string]definition, model, t string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		ranks := f.fault == nil && (f.Model == model || slices.Contains(f.Shadow, model))
		if ranks && (len(f.Types) == 0 || slices.Contains(f.Types, millrace.ContentType(t))) {
			names = append(names, name)
		}
	}
	return names
}
