package feeds

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/millrace/millrace/relevance/experiment"
)

// Set changes a definition by what variants set. It ignores weights, which a definition
// does not have.
func (f *Feed) Set(s experiment.Sets) {
	if s.Interleave != nil {
		f.interleaves(s.Interleave)
	}
	if s.Model != "" {
		f.Model = s.Model
		if slices.Contains(f.Shadow, s.Model) {
			f.Shadow = slices.DeleteFunc(slices.Clone(f.Shadow), func(m string) bool { return m == s.Model })
		}
	}
	if s.Filter != nil {
		f.Filter = *s.Filter
	}
	if s.Window != nil {
		f.Window = *s.Window
	}
	if s.Types != nil {
		f.Types = s.Types
	}
	if s.CapPerEntity != nil {
		f.CapPerEntity = *s.CapPerEntity
	}
	if s.Spacing != nil {
		f.Spacing = Spacing(*s.Spacing)
	}
	if s.Limit != 0 {
		f.Limit = s.Limit
	}
}

// Changes reports whether a variant changes what a definition shows. It changes shadow models
// only together with the model.
func (f *Feed) Changes(s experiment.Sets) bool {
	if s.Interleave != nil || len(s.Weights) > 0 {
		return true
	}
	was, is := *f, *f
	is.Set(s)
	was.Limit, is.Limit = cmp.Or(was.Limit, DefaultLimit), cmp.Or(is.Limit, DefaultLimit)
	return !reflect.DeepEqual(was, is)
}

// interleaves makes two models (models[0] and models[1]) take turns to choose the items of
// a feed's pages.
func (f *Feed) interleaves(models []string) {
	f.Model, f.interleaved = models[0], models[1]
	f.Shadow = slices.DeleteFunc(slices.Clone(f.Shadow), func(m string) bool { return m == f.Model })
}
