package models

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/cli/export"
)

// moment orders the pages of a viewer, wherever they are in the file: by the time of the
// answer, and then by its id.
type moment struct {
	time   time.Time
	answer string
}

func momentOf(page []export.Item) moment { return moment{page[0].Time, page[0].Answer} }

func (m moment) before(other moment) bool {
	if c := m.time.Compare(other.time); c != 0 {
		return c < 0
	}
	return strings.Compare(m.answer, other.answer) < 0
}

// loggedPage is a viewer's first page, for the estimates.
type loggedPage struct {
	moment
	reward float64 // how many of its items the viewer acted on
	of     *arm    // the arm of the variant that the viewer had
	items  int     // how many items it has
	own    begun   // whether the replayed model begins it as shown
	by     []armed // how arms begin it; see replay.log for which arms
}

// armed says how an arm begins a page.
type armed struct {
	arm   *arm
	blind bool // the page lacks features that the arm's model needs, so begun is unknown
	begun
}

// measuredPage is a viewer's first page that counts for the measures. For each measure of
// replay.measures, in order, it has the value of the page as shown and as ranked anew.
type measuredPage struct {
	moment
	acted  bool // the viewer acted on some item
	values [][2]float64
}

// settle adds up the first pages of viewers, once the file is read. It goes by the order of
// viewers' names, so that rounding in the sums does not depend on the order of the file.
func (r *replay) settle() {
	for _, viewer := range slices.Sorted(maps.Keys(r.firsts)) {
		r.count(r.firsts[viewer])
	}
	for _, viewer := range slices.Sorted(maps.Keys(r.ranked)) {
		page := r.ranked[viewer]
		if page.acted {
			r.acted++
		}
		for i, m := range r.measures {
			was, is := page.values[i][0], page.values[i][1]
			m.shown.Add(was)
			m.new.Add(is)
			m.more.Add(is - was)
		}
	}
}

// count adds a first page to those of the estimates, and to the counts of the arms in l.by.
func (r *replay) count(l *loggedPage) {
	r.logged = append(r.logged, l)
	for _, b := range l.by {
		switch a := b.arm; {
		case b.blind:
			a.blind++
		case a == l.of:
			a.began++
			if !b.may {
				a.other++
			}
		case b.may && !b.must:
			a.open++
		}
	}
}
