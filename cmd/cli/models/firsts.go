package models

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/cli/export"
)

// moment is when an answer was given. It orders the pages of a viewer, wherever they
// stand in the file.
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
	reward float64
	of     *arm
	items  int
	own    begun   // by the replayed model
	by     []armed // how arms of its definition begin it that are looked at
}

// armed is how an arm begins a page.
type armed struct {
	arm   *arm
	blind bool // the page lacks features of it
	begun
}

// measuredPage is a viewer's first page for the measures: of each measure what was
// shown and what the new ranking makes of it.
type measuredPage struct {
	moment
	acted  bool
	values [][2]float64
}

// settle adds up the first pages of viewers: always in the same order, so that the sums
// do not depend on that of the file.
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

// count adds a first page to those that the estimates are of, and to what is known of
// arms.
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
