package models

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/millrace/millrace/cmd/cli/export"
	"github.com/millrace/millrace/internal/stats"
)

// dealt is a variant of the experiment as a definition of it had it.
type dealt struct{ checksum, variant string }

// arm is a variant that was dealt, and what is known of how it ranks.
type arm struct {
	dealt
	chance   float64 // that who is in the experiment has it
	rankings map[ranking]bool
	by       *ranker // nil: why says why it is not known what pages it begins how
	why      string

	ranked, unread int // pages that the replayed model ranks, and that lack features of it
	began, other   int // first pages that by ranks, and those of them that it begins otherwise
	blind          int // first pages of any arm that lack features of by
}

// maxRankings is how many models of an arm are told apart: one is what it takes.
const maxRankings = 2

// otherwise is the share of an arm's own pages that its model may begin otherwise than
// they were shown. Above it something else has a say in them.
const otherwise = 0.01

// unclear says why it is not known how the arm would have begun a page; "" if it is.
func (a *arm) unclear() string {
	switch {
	case a.by == nil:
		return a.why
	case a.blind > 0:
		return fmt.Sprintf("%d pages lack features that %s reads", a.blind, a.ranking())
	case !a.true():
		return fmt.Sprintf("%d of its %d first pages do not begin as %s ranks them", a.other, a.began, a.ranking())
	}
	return ""
}

// true reports whether the arm's own pages begin as its model ranks them.
func (a *arm) true() bool { return float64(a.other) <= otherwise*float64(a.began) }

// leftOut reports whether none of the arm's pages counts.
func (a *arm) leftOut() bool { return a.ranked == 0 && a.unread > 0 }

// ranking is the one by which all of its pages are, if it is one.
func (a *arm) ranking() (one ranking) {
	for k := range a.rankings {
		one = k
	}
	return one
}

// armOf is that of an answer.
func (r *replay) armOf(e *export.Variant) *arm {
	of := dealt{e.Checksum, e.Variant}
	if r.dealt[of] == nil {
		r.dealt[of] = &arm{dealt: of, chance: e.ProbabilityInside, rankings: map[ranking]bool{}}
	}
	return r.dealt[of]
}

// arms are all, in order.
func (r *replay) arms() []*arm {
	return slices.SortedFunc(maps.Values(r.dealt), func(a, b *arm) int {
		return cmp.Or(cmp.Compare(a.variant, b.variant), cmp.Compare(a.checksum, b.checksum))
	})
}

// survey notes which variants the file has and what ranked them: how likely a page was
// depends on all of them. What is wrong with the file, read tells.
func (r *replay) survey(ctx context.Context) error {
	f, err := os.Open(r.file)
	if err != nil {
		return err
	}
	defer f.Close()
	next, err := shownRows(f)
	if err != nil {
		return nil
	}
	for {
		row, err := next()
		if err == nil {
			_, err = textsOf(&row)
		}
		if err != nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		k := slices.IndexFunc(row.Experiments, func(e export.Variant) bool { return e.Experiment == r.experiment && !e.Forced })
		if k < 0 || row.ID == nil {
			continue
		}
		a := r.armOf(&row.Experiments[k])
		if row.Team != nil {
			a.why = "two models draft its pages"
		}
		if len(a.rankings) < maxRankings {
			a.rankings[rankingOf(&row)] = true
		}
	}
}

// rank gives each arm what ranks it, of what is at hand.
func (r *replay) rank(have *shelf) {
	r.all = r.arms()
	for _, a := range r.all {
		switch set, chooses := have.chooses[a.variant]; {
		case a.why != "":
		case len(a.rankings) > 1:
			a.why = "several models ranked its pages, or versions of one"
		case chooses:
			a.why = "it sets " + set + ", and so chooses among other records"
		default:
			m, err := have.model(a.ranking())
			if err != nil {
				a.why = err.Error()
				continue
			}
			a.by = rankerOf(m)
		}
	}
}

// loggedPage is a viewer's first page, for the estimates.
type loggedPage struct {
	reward float64
	of     *arm
	items  int
	alike  []*arm // of the arms of its definition those that begin it as it was shown, if the replayed model does
}

// log notes a viewer's first page, of which the replayed model makes an order.
func (r *replay) log(of *arm, page []export.Item, order []int, acted float64) error {
	l := loggedPage{reward: acted, of: of, items: len(page)}
	alike := begins(order, r.match)
	if alike {
		r.alike++
		l.alike = []*arm{of}
	}
	for _, a := range r.all {
		if a.checksum != of.checksum || a.by == nil || a != of && !alike {
			continue
		}
		if _, _, lacks := a.by.lack(page); lacks {
			a.blind++
			continue
		}
		its, err := a.by.order(page)
		if err != nil {
			return err
		}
		same := begins(its, r.match)
		if a == of {
			a.began++
			if !same {
				a.other++
			}
		} else if same {
			l.alike = append(l.alike, a)
		}
	}
	r.logged = append(r.logged, l)
	return nil
}

// grounds is what an estimate stands on.
type grounds struct {
	without []string // variants of which all pages are left out
	unclear []string // variants of which it is not known how they begin pages, and why
	alone   []string // the variants that the replayed model itself ranked, whose pages count alone
	short   int      // without such a variant: first pages that are too short to tell by
}

// tellingPage is how many times --match a page has at least by which it is told how
// another ranking would have begun it. It has what one ranking chose: the fewer items,
// the less can another begin it otherwise, also one that would have chosen others.
const tellingPage = 10

// chances are those of the pages that count. Where a variant ranks by the replayed model
// itself its pages count alone: what it shows is what the model would. Without one, a
// page is as likely as all variants together that begin it so, as far as its items tell.
// A variant of which all pages are left out is dealt to nobody among the rest.
func (r *replay) chances() (logged []stats.Logged, on grounds) {
	rest, itself := map[string]float64{}, map[*arm]bool{} // by checksum; which counts alone
	for _, a := range r.arms() {
		if a.leftOut() {
			rest[a.checksum] += a.chance
			on.without = append(on.without, a.variant)
			continue
		}
		if why := a.unclear(); why != "" {
			on.unclear = append(on.unclear, fmt.Sprintf("variant %s: %s", a.variant, why))
		}
		if itself[a] = a.by != nil && a.ranking() == r.self && r.self.name != "" && a.true(); itself[a] {
			on.alone = append(on.alone, a.variant)
		}
	}
	on.without, on.unclear, on.alone = slices.Compact(on.without), slices.Compact(on.unclear), slices.Compact(on.alone)
	for _, l := range r.logged {
		page := stats.Logged{Reward: l.reward, Old: l.of.chance}
		if len(on.alone) == 0 && l.items < tellingPage*r.match {
			on.short++
		}
		switch {
		case len(l.alike) == 0 || len(on.alone) > 0 && !itself[l.of]:
		case len(on.alone) > 0:
			page.New = 1
		default:
			page.New, page.Old = 1, 0
			for _, a := range l.alike {
				if !a.leftOut() {
					page.Old += a.chance
				}
			}
		}
		page.Old = min(1, page.Old/(1-rest[l.of.checksum]))
		logged = append(logged, page)
	}
	return logged, on
}

// told is why there is no estimate, if there is nothing that it can stand on.
func (g *grounds) told() string {
	switch {
	case len(g.alone) > 0:
		return ""
	case len(g.unclear) > 0:
		return "how likely a page was depends on all variants that would have begun it so, which is not known of " + strings.Join(g.unclear, "; ")
	case g.short > 0:
		return fmt.Sprintf("no variant ranks by this model, and %d pages have fewer than %d items for each of --match: what another ranking would have begun them with they cannot tell; an experiment with it can", g.short, tellingPage)
	}
	return ""
}
