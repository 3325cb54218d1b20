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

// dealt names a variant of the experiment under one version of the experiment's document.
type dealt struct{ checksum, variant string } // checksum is of the document

// arm is a variant that viewers had under one version of the document, and what is known of
// how it ranks. Its own pages are those that viewers with the variant were shown. A first
// page is the earliest page of a viewer. A model begins a page as shown if it ranks the same
// items first as the page has.
type arm struct {
	dealt
	chance   float64          // the probability of the variant for viewers in the experiment
	rankings map[ranking]bool // the models that ranked its pages, maxRankings at most
	by       *ranker          // ranks as the arm does; nil: how it ranks is unknown, and the field why says the reason
	why      string           // why by is nil; "" if it is not
	sized    string           // why the number of items of a page may depend on the variant; "": it does not

	ranked, unread int // the numbers of its pages that the replayed model can rank, and of those that lack features the model needs
	began, other   int // the numbers of its first pages that by can rank, and of those among them that by does not begin as shown
	blind          int // the number of first pages, of any arm, that lack features that by needs
	open           int // the number of first pages of other arms that by begins as shown only in some order of items of equal scores
}

// maxRankings is how many models of an arm are kept. Two are enough to know that it has more
// than one.
const maxRankings = 2

// otherwise is the largest share of an arm's own first pages that its model may fail to begin
// as they were shown. Above it, something else than the model decides how pages begin. It is
// also the largest share of all first pages that an arm may begin in several ways because of
// equal scores.
const otherwise = 0.01

// unclear returns the reason why it is not known how the arm would begin pages; "" if it is
// known. pages is the number of all first pages.
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

// true reports whether the arm's own first pages begin as its model ranks them, all but a
// share of otherwise.
func (a *arm) true() bool { return float64(a.other) <= otherwise*float64(a.began) }

// leftOut reports whether none of the arm's pages counts, since all of them lack features that
// the replayed model needs.
func (a *arm) leftOut() bool { return a.ranked == 0 && a.unread > 0 }

// ranking returns the model that ranked the arm's pages. It is meant for arms with one
// model; if an arm has several, it returns any of them.
func (a *arm) ranking() (one ranking) {
	for k := range a.rankings {
		one = k
	}
	return one
}

// armOf returns the arm of a variant that an answer had, and creates it the first time.
func (r *replay) armOf(e *export.Variant) *arm {
	of := dealt{e.Checksum, e.Variant}
	if r.dealt[of] == nil {
		r.dealt[of] = &arm{dealt: of, chance: e.ProbabilityInside, rankings: map[ranking]bool{}}
	}
	return r.dealt[of]
}

// arms returns all arms, sorted by variant and then by checksum.
func (r *replay) arms() []*arm {
	return slices.SortedFunc(maps.Values(r.dealt), func(a, b *arm) int {
		return cmp.Or(cmp.Compare(a.variant, b.variant), cmp.Compare(a.checksum, b.checksum))
	})
}

// survey reads the file once to find the arms and the models that ranked their pages: how
// likely a page was depends on all arms. After that, read reads the file again. At a fault in
// the file survey stops and returns nil, since read returns that fault.
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

// rank gives each arm its ranker, by the models in have, or the reason why it has none. It
// is called after survey.
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

// log keeps l as the first page of a viewer, unless an earlier one is known. It adds to l
// how arms of the same version of the document begin the page: always for the page's own
// arm, and for the other arms only if the replayed model begins the page as shown.
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

// ranksAs reports whether both arms rank by the same model. Then they begin pages alike, even
// where items have equal scores.
func (a *arm) ranksAs(other *arm) bool {
	return a.by != nil && other.by != nil && a.ranking() == other.ranking()
}

// begin returns how the arm begins a page. items is how many of the page's first items count
// as its beginning.
func (a *arm) begin(page []export.Item, items int) (armed, error) {
	if _, _, lacks := a.by.lack(page); lacks {
		return armed{arm: a, blind: true}, nil
	}
	o, err := a.by.order(page)
	return armed{arm: a, begun: o.begins(items)}, err
}

// grounds says what an estimate is based on.
type grounds struct {
	without []string // variants of which all pages are left out
	unclear []string // variants of which it is not known how they begin pages, and why
	alone   []string // variants that the replayed model itself ranked; if there are any, only their pages count
	short   int      // first pages with too few items to tell by; 0 if alone has variants
	amiss   []string // variants that have more or fewer first pages than their chances say
	sized   string   // why the short pages are not left out; "": they are left out

	// viewers is the number of first pages that count, one of each viewer. alike is how many
	// of them the replayed model begins as shown; of a page that it ranked itself, it is
	// enough that it does so in some order of items of equal scores. open is how many of the
	// other pages it begins as shown only in some such order; 0 if alone has variants.
	viewers, alike, open int
	shown                stats.Mean // the number of items that viewers acted on, of a page
}

// tellingPage times --match is the number of items that a page must have to tell how another
// ranking would have begun it. A page has only the items that one ranking chose. On a page of
// few items another ranking begins with the same ones more often, even a ranking that would
// have chosen other items.
const tellingPage = 10

// known returns what is known of the arms: the grounds that follow from them, the arms that
// the replayed model itself ranked, and the chance of the arms that are left out, by
// checksum.
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

// amiss returns the variants that have more or fewer first pages than their probability
// says. If a variant is assigned with its probability, amiss still names it by chance in one
// file of a hundred. rest is the chance of the arms that are left out, by checksum.
func (r *replay) amiss(rest map[string]float64) (all []string) {
	pages, has := map[string]int{}, map[*arm]int{} // numbers of first pages, by checksum and by arm
	for _, l := range r.logged {
		pages[l.of.checksum]++
		has[l.of]++
	}
	for _, a := range r.arms() {
		if a.leftOut() {
			continue
		}
		n, chance := float64(pages[a.checksum]), min(1, a.chance/(1-rest[a.checksum]))
		const of99 = 2.576 // a normally distributed value is within so many standard deviations of its mean with a probability of 99 %
		if off := math.Abs(float64(has[a]) - n*chance); off > of99*math.Sqrt(n*chance*(1-chance)) {
			all = append(all, fmt.Sprintf("variant %s has %d of %.0f first pages, by a chance of %.3g", a.variant, has[a], n, chance))
		}
	}
	return all
}

// chances returns the first pages that count, with the probabilities of old and new ranking,
// and the grounds of the estimate. If the replayed model itself ranked some variants, only
// their pages get a weight: they show what the model would show. Otherwise a page that the
// replayed model begins as shown has the probability of all variants that begin it so. The
// probabilities are those among the variants that are not left out.
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

// chanceOf returns the sum of the chances of those arms in some that have the checksum.
func (r *replay) chanceOf(checksum string, some map[*arm]bool) (sum float64) {
	for _, a := range r.all {
		if some[a] && a.checksum == checksum {
			sum += a.chance
		}
	}
	return sum
}

// alike returns the sum of the chances of all arms that begin the page as it was shown: the
// arm that showed it, and the arms whose models begin it so.
func (l *loggedPage) alike() float64 {
	sum := l.of.chance
	for _, b := range l.by {
		if b.arm != l.of && b.must && !b.arm.leftOut() {
			sum += b.arm.chance
		}
	}
	return sum
}

// whyUnknown returns why there can be no estimate; "" if there can.
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

// none returns the text that says that no page counts.
func (g *grounds) none() string {
	why := "no first page begins as the new ranking begins it, so that none tells what it would earn"
	if g.open > 0 {
		why += fmt.Sprintf("; %d may, in some order of items that score the same", g.open)
	}
	return why
}
