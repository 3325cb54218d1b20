package models

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
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
	sized    string // why how many items a page has may depend on the variant; "": it does not

	ranked, unread int // pages that the replayed model ranks, and that lack features of it
	began, other   int // first pages that by ranks, and those of them that it begins otherwise
	blind          int // first pages of any arm that lack features of by
	open           int // first pages of others that by begins alike only in some order of items that score the same
}

// maxRankings is how many models of an arm are told apart: one is what it takes.
const maxRankings = 2

// otherwise is the share of an arm's own pages that its model may begin otherwise than
// they were shown. Above it something else has a say in them. It is, too, the share of all
// pages of which equal scores may hide how an arm begins them.
const otherwise = 0.01

// unclear says why it is not known how the arm would have begun one of so many pages; ""
// if it is.
func (a *arm) unclear(pages int) string {
	switch {
	case a.by == nil:
		return a.why
	case a.blind > 0:
		return fmt.Sprintf("%d pages lack features that %s reads", a.blind, a.ranking())
	case !a.true():
		return fmt.Sprintf("%d of its %d first pages do not begin as %s ranks them", a.other, a.began, a.ranking())
	case float64(a.open) > otherwise*float64(pages):
		return fmt.Sprintf("%s gives the first items of %d pages equal scores, which leaves open what it begins them with", a.ranking(), a.open)
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
		set, defined := have.defined[a.variant]
		a.sized = set.sized(a.variant, defined)
		switch {
		case a.why != "":
		case len(a.rankings) > 1:
			a.why = "several models ranked its pages, or versions of one"
		case set.chooses != "":
			a.why = "it sets " + set.chooses + ", and so chooses among other records"
		case set.spreads != "" && r.match > 1:
			a.why = "it sets " + set.spreads + ", and so has a say in all but the first item"
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

// log notes a viewer's first page, if there was none before it, and how the replayed
// model begins it and arms do.
func (r *replay) log(viewer string, l *loggedPage, page []export.Item) error {
	if first := r.firsts[viewer]; first != nil && !l.before(first.moment) {
		return nil
	}
	r.firsts[viewer] = l
	for _, a := range r.all {
		if a.checksum != l.of.checksum || a.by == nil || a != l.of && !l.own.must {
			continue
		}
		b, err := a.begin(page, r.match)
		if err != nil {
			return err
		}
		if a != l.of && a.ranksAs(l.of) {
			b = armed{arm: a, begun: begun{true, true}}
		}
		l.by = append(l.by, b)
	}
	return nil
}

// ranksAs reports whether both arms rank by one model, and so begin pages alike, equal
// scores or not.
func (a *arm) ranksAs(other *arm) bool {
	return a.by != nil && other.by != nil && a.ranking() == other.ranking()
}

// begin is how the arm begins a page.
func (a *arm) begin(page []export.Item, items int) (armed, error) {
	if _, _, lacks := a.by.lack(page); lacks {
		return armed{arm: a, blind: true}, nil
	}
	o, err := a.by.order(page)
	return armed{arm: a, begun: o.begins(items)}, err
}

// grounds is what an estimate stands on.
type grounds struct {
	without []string // variants of which all pages are left out
	unclear []string // variants of which it is not known how they begin pages, and why
	alone   []string // the variants that the replayed model itself ranked, whose pages count alone
	short   int      // without such a variant: first pages that are too short to tell by
	amiss   []string // variants that do not have as many first pages as their chances say
	sized   string   // why those are not left out; "": they are

	viewers, alike, open int // first pages; of these, those that begin alike, and those that do in some order of equal scores alone
	shown                stats.Mean
}

// tellingPage is how many times --match a page has at least by which it is told how
// another ranking would have begun it. It has what one ranking chose: the fewer items,
// the less can another begin it otherwise, also one that would have chosen others.
const tellingPage = 10

// known is what is known of the variants: which count alone, by what, and of how likely
// those are that are left out, by checksum.
func (r *replay) known() (on grounds, itself map[*arm]bool, rest map[string]float64) {
	rest, itself = map[string]float64{}, map[*arm]bool{}
	for _, a := range r.arms() {
		if a.leftOut() {
			rest[a.checksum] += a.chance
			on.without = append(on.without, a.variant)
			continue
		}
		if why := a.unclear(len(r.logged)); why != "" {
			on.unclear = append(on.unclear, fmt.Sprintf("variant %s: %s", a.variant, why))
		}
		if itself[a] = a.by != nil && a.ranking() == r.self && r.self.name != "" && a.true(); itself[a] {
			on.alone = append(on.alone, a.variant)
		}
		if a.sized != "" && on.sized == "" {
			on.sized = a.sized
		}
	}
	on.without, on.unclear, on.alone = slices.Compact(on.without), slices.Compact(on.unclear), slices.Compact(on.alone)
	on.amiss = r.amiss(rest)
	return on, itself, rest
}

// amiss are the variants that have more or fewer first pages than by their chance, beyond
// what chance allows in one of a hundred files.
func (r *replay) amiss(rest map[string]float64) (all []string) {
	pages, has := map[string]int{}, map[*arm]int{} // by checksum; by arm
	for _, l := range r.logged {
		pages[l.of.checksum]++
		has[l.of]++
	}
	for _, a := range r.arms() {
		if a.leftOut() {
			continue
		}
		n, chance := float64(pages[a.checksum]), min(1, a.chance/(1-rest[a.checksum]))
		const of99 = 2.576 // standard deviations, of a normal value
		if off := math.Abs(float64(has[a]) - n*chance); off > of99*math.Sqrt(n*chance*(1-chance)) {
			all = append(all, fmt.Sprintf("variant %s has %d of %.0f first pages, by a chance of %.3g", a.variant, has[a], n, chance))
		}
	}
	return all
}

// chances are those of the pages that count. Where variants rank by the replayed model
// itself their pages count alone: what they show is what the model would. Without one, a
// page is as likely as all variants together that begin it so, as far as its items tell.
// A variant of which all pages are left out is dealt to nobody among the rest.
func (r *replay) chances() (logged []stats.Logged, on grounds) {
	on, itself, rest := r.known()
	for _, l := range r.logged {
		page := stats.Logged{Reward: l.reward, Old: l.of.chance}
		if len(on.alone) == 0 && l.items < tellingPage*r.match {
			if on.short++; on.sized == "" {
				continue
			}
		}
		switch {
		case len(on.alone) > 0 && itself[l.of] && l.own.may:
			page.New, page.Old = 1, r.chanceOf(l.of.checksum, itself)
		case len(on.alone) == 0 && l.own.must:
			page.New, page.Old = 1, l.alike()
		case len(on.alone) == 0 && l.own.may:
			on.open++
		}
		if l.own.must || page.New > 0 {
			on.alike++
		}
		page.Old = min(1, page.Old/(1-rest[l.of.checksum]))
		on.shown.Add(l.reward)
		logged = append(logged, page)
	}
	on.viewers = len(logged)
	return logged, on
}

// chanceOf is that of all of some arms that are of a definition.
func (r *replay) chanceOf(checksum string, some map[*arm]bool) (sum float64) {
	for _, a := range r.all {
		if some[a] && a.checksum == checksum {
			sum += a.chance
		}
	}
	return sum
}

// alike is the chance of all arms that begin the page as it was shown: that which showed
// it and those whose models do.
func (l *loggedPage) alike() float64 {
	sum := l.of.chance
	for _, b := range l.by {
		if b.arm != l.of && b.must && !b.arm.leftOut() {
			sum += b.arm.chance
		}
	}
	return sum
}

// whyUnknown says why there is no estimate, if there is nothing that it can stand on.
func (g *grounds) whyUnknown(experiment string) string {
	switch {
	case g.viewers+g.short == 0:
		return "no viewer has a first page, which is one of experiment " + experiment + " that begins at place 1 and is not left out"
	case len(g.alone) == 0 && len(g.unclear) > 0:
		return "how likely a page was depends on all variants that would have begun it so, which is not known of " + strings.Join(g.unclear, "; ")
	case g.short > 0 && (g.sized != "" || g.viewers == 0):
		why := fmt.Sprintf("no variant ranks by this model, and %d pages have fewer than %d items for each of --match: what another ranking would have begun them with they cannot tell; an experiment with it can", g.short, tellingPage)
		if g.sized != "" && g.viewers > 0 {
			why += ". They are not left out, since " + g.sized
		}
		return why
	case g.alike == 0:
		return g.none()
	}
	return ""
}

// none says that no page counts.
func (g *grounds) none() string {
	why := "no first page begins as the new ranking begins it, so that none tells what it would earn"
	if g.open > 0 {
		why += fmt.Sprintf("; %d may, in some order of items that score the same", g.open)
	}
	return why
}
