package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// weighing is a world in which only weights may not fit.
type weighing func(feed, model string, set map[string]float64) error

func (weighing) HasFeed(string) bool      { return true }
func (weighing) HasModel(string) bool     { return true }
func (weighing) CheckFilter(string) error { return nil }

func (weighing) IsPrivate(string) (bool, error) { return false, nil }

func (w weighing) CheckWeights(feed, model string, set map[string]float64) error {
	return w(feed, model, set)
}

// All weights of experiments that may yet assign are asked about: on each feed
// where its model is meant, once where a model is named.
func TestKeepsWeights(t *testing.T) {
	var src strings.Builder
	src.WriteString("layers: [{name: l, salt: s, unit: viewer}, {name: authors, salt: a, unit: entity}]\nexperiments:\n")
	for i, x := range []struct{ state, layer, feeds, sets string }{
		{"draft", "l", "home, news", "weights: {likes: 2}"}, {"running", "l", "home, news", "model: m, weights: {clicks: 3}"}, {"paused", "l", "home, news", "limit: 3"},
		{"stopped", "l", "home, news", "weights: {old: 1}"}, {"paused", "authors", "jobs", "weights: {shares: 1}"},
	} {
		fmt.Fprintf(&src, "  - {name: e%d, layer: %s, feeds: [%s], state: %s, slots: [%d-%d], share: 10000, variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {%s}}]}\n", i, x.layer, x.feeds, x.state, 100*i, 100*i+99, x.sets)
	}
	s := compile(t, src.String())
	var asked []string
	lack := func(feeds ...string) weighing {
		return func(feed, model string, set map[string]float64) error {
			asked = append(asked, fmt.Sprint(feed, model, set))
			if !slices.Contains(feeds, feed) {
				return nil
			}
			return &millrace.Error{Field: "weights", Detail: fmt.Sprintf("%s lacks %v", feed, set)}
		}
	}
	if err := s.Keeps(lack(), lack()); err != nil {
		t.Error(err)
	}
	if want := []string{"homemap[likes:2]", "newsmap[likes:2]", "homemmap[clicks:3]", "jobsmap[shares:1]"}; !slices.Equal(asked, want) {
		t.Errorf("asked about %q, want %q", asked, want)
	}
	var e *millrace.Error
	err := s.Keeps(lack(), lack("home"))
	want := "variant b of experiment e0 sets weights on feed home, and home lacks map[likes:2]; variant b of experiment e1 sets weights on feed home, and home lacks map[clicks:3]"
	if !errors.As(err, &e) || e.Detail != want || !strings.HasPrefix(e.WayOut, "stop or change e0, e1 first, ") {
		t.Errorf("%+v", e)
	}
	if err := s.Keeps(lack(), lack("home", "news", "jobs")); !errors.As(err, &e) || !strings.HasSuffix(e.Detail, "; and 1 more like these") || !strings.HasPrefix(e.WayOut, "stop or change e0, e1, e4 first, ") {
		t.Errorf("many: %+v", e)
	}
	away := errors.New("etcd is away")
	unasked := weighing(func(string, string, map[string]float64) error { return away })
	if err := s.Keeps(lack("home", "news", "jobs"), unasked); !errors.Is(err, away) {
		t.Errorf("of what did not fit it is not known whether it does: %v", err)
	}
	if err := s.Keeps(unasked, unasked); err != nil {
		t.Errorf("it was not known before: %v", err)
	}
	if err := s.Keeps(unasked, lack("home")); !errors.As(err, &e) {
		t.Errorf("what was not known does not fit: %v", err)
	}
	if err := s.Keeps(lack(), weighing(func(string, string, map[string]float64) error { return away })); !errors.Is(err, away) {
		t.Errorf("%v", err)
	}
}

// Targeting whose clauses want one attribute to be of two types is true of nobody, and
// refused; of an experiment that is there already nobody gets a variant, as before.
func TestTargetingThatIsTrueOfNobody(t *testing.T) {
	known := names{"feed home", "model home2"}
	for src, want := range map[string]string{
		`viewer.age > "3" && viewer.age < 5.0`:                    "viewer.age would have to be a text and a number",
		`viewer.age && (viewer.beta && 18 < viewer.age)`:          "viewer.age would have to be a boolean and a number",
		`viewer.age == true && viewer.age == "x"`:                 "viewer.age would have to be a boolean and a text",
		`viewer.age > 3 && viewer.age < 5.0`:                      "",
		`viewer.age > "3" || viewer.age < 5.0`:                    "",
		`viewer.age > "3" && viewer.beta < 5.0`:                   "",
		`(viewer.age > "3" || viewer.beta) && viewer.age < 5.0`:   "",
		`viewer.country in ["de", "fr"] && viewer.country != "x"`: "",
	} {
		d := parse(t, strings.Replace(shown, `viewer.country in ["de", "fr"]`, src, 1))
		_, err := Admit([]Document{d}, known)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "experiments[0].targeting: "+want+": of a value of another type a comparison is not true; write a text in quotes")) {
			t.Errorf("%s: %v", src, err)
		}
		s, err := Serve([]Document{d}, known)
		if err != nil || (s.Experiments()[0].Unfit == "") != (want == "") {
			t.Errorf("%s, of before: %v", src, err)
		}
	}
}

// Targeting that constants alone make false is refused, and stays where it was before.
func TestTargetingThatIsNever(t *testing.T) {
	known := names{"feed home", "model home2"}
	for src, never := range map[string]bool{
		`false`: true, `1 == 2`: true, `!true`: true, `"a" > "b"`: true, `true < false`: true, `true && 2 <= 1.5`: true,
		`viewer.country in []`: true, `viewer.beta && viewer.country in []`: true, `viewer.country in [] || false`: true,
		`viewer.country == "de" && viewer.country == "fr"`: true, `viewer.country in ["de", "fr"] && viewer.country == "es"`: true,
		`viewer.country in ["de", "fr"] && viewer.country in ["es"]`: true, `viewer.country == "de" && (viewer.beta && viewer.country != "de")`: true,
		`viewer.age && !viewer.age`: true, `viewer.age > 5 && viewer.age < 3`: true, `5 < viewer.age && 5.0 >= viewer.age`: true, `viewer.age == 4 && viewer.age > 4`: true,
		`viewer.id == "a" && viewer.id > "b"`:                                        true,
		`(viewer.age == 1 && viewer.age == 2) || viewer.age == 3 && viewer.age == 4`: true,

		`true`: false, `1 < 2`: false, `false < true`: false, `!(viewer.country in [])`: false, `!false`: false, `"x" in viewer.tags && "y" in viewer.tags`: false,
		`viewer.country == "de" || viewer.country == "fr"`: false, `viewer.country in ["de", "fr"] && viewer.country != "fr"`: false,
		`viewer.age >= 5 && viewer.age <= 5.0`: false, `viewer.age == 5 && viewer.age == 5.0`: false, `viewer.age > 3 && viewer.beta < 3`: false,
		`viewer.age == 9007199254740993 && viewer.age != 9007199254740992`: false, `viewer.a in [viewer.b] && viewer.a == "x"`: false,
		`viewer.country != "de" && viewer.country != "fr"`: false, `viewer.age != 3 && viewer.age > 2 && viewer.age < 4`: false,
	} {
		d := parse(t, strings.Replace(shown, `viewer.country in ["de", "fr"]`, "'"+src+"'", 1))
		_, err := Admit([]Document{d}, known)
		if !never && err != nil || never && (err == nil || !strings.Contains(err.Error(), "experiments[0].targeting: it is true of nobody; leave it out for everybody")) {
			t.Errorf("%s: %v", src, err)
		}
		if s, err := Serve([]Document{d}, known); err != nil || s.Experiments()[0].Unfit != "" {
			t.Errorf("%s, of before: %v", src, err)
		}
	}
}

// What variants refer to does not go from under them; what is at fault already is
// no reason to keep anything.
func TestKeepsWhatExperimentsReferTo(t *testing.T) {
	src := strings.Replace(shown, "set: {model: home2, limit: 30}", `set: {model: home2, filter: "record.nosuch > 1", window: 1h, weights: {likes: 1}}`, 1)
	whole := names{"feed home", "model home2", "weight home/home2/likes", "field nosuch"}
	without := func(lost string) names {
		return slices.DeleteFunc(slices.Clone(whole), func(s string) bool { return s == lost })
	}
	const variant = "variant treatment of experiment fresher sets "
	for _, c := range []struct {
		now, next names
		want      string
	}{
		{whole, whole, ""},
		{whole, without("feed home"), "experiment fresher is on feed home, and there is no feed home; stop or change fresher first"},
		{whole, without("model home2"), variant + "model home2, and no model home2 serves; stop or change fresher first"},
		{whole, without("field nosuch"), variant + "a filter, and no field nosuch in record; stop or change fresher first"},
		{whole, append(whole, "private home"), variant + "filter on feed home, and feed home is private, and this could show what it drops; " + variant + "window on feed home, and feed home is private, and this could show what it drops; stop or change fresher first"},
		{whole, without("weight home/home2/likes"), variant + "weights on feed home, and no parameter likes; stop or change fresher first, or push a version that has these parameters"},
		{whole, append(whole, "unread home"), variant + "filter on feed home: feed home cannot be read; restore it"},
		{append(whole, "unread home"), append(whole, "unread home"), ""}, // which no change can help
		{append(whole, "unread home"), append(whole, "private home"), variant + "filter on feed home, and feed home is private, and this could show what it drops; " + variant + "window on feed home, and feed home is private, and this could show what it drops; stop or change fresher first"},
		{without("field nosuch"), without("field nosuch"), ""},
		{without("field nosuch"), names{"feed home", "weight home/home2/likes"}, variant + "model home2, and no model home2 serves; stop or change fresher first"},
	} {
		for state, kept := range map[string]bool{"running": true, "draft": true, "paused": true, "stopped": false} {
			got, want := "", c.want
			if err := compile(t, strings.Replace(src, "state: running", "state: "+state, 1)).Keeps(c.now, c.next); err != nil {
				got = strings.TrimPrefix(err.Error(), "experiment: ")
			}
			if !kept {
				want = ""
			}
			if got != want {
				t.Errorf("from %q to %q, %s: %q, want %q", c.now, c.next, state, got, want)
			}
		}
	}
}

// What cannot be read of a feed is told as such, and not as private: a document that is
// about to be put in place is refused, and one that is there goes on.
func TestAFeedThatCannotBeReadIsNotCalledPrivate(t *testing.T) {
	docs := []Document{parse(t, strings.Replace(shown, "set: {model: home2, limit: 30}", "set: {window: 1h}", 1))}
	known := names{"feed home", "unread home"}
	_, err := Admit(docs, known)
	if err == nil || !strings.Contains(err.Error(), "experiments[0].variants[1].set.window: feed home cannot be read; restore it") {
		t.Errorf("%v", err)
	}
	s, err := Serve(docs, known)
	if err != nil || s.Unfit() != nil || s.Experiments()[0].Unfit != "" {
		t.Errorf("%v, %v", err, s.Unfit())
	}
}

// An experiment that does not fit any more gives nobody a variant and keeps its
// slots; the others of its document go on. Of a document that is about to be put in
// place it is a fault.
func TestServeAnUnfitExperiment(t *testing.T) {
	src := strings.Replace(shown, "model: home2, limit: 30", `filter: "record.nosuch > 1"`, 1) + `
  - {name: other, layer: ranking, feeds: [home], state: running, slots: [5000-9499], share: 10000, variants: [{name: all, weight: 10000, set: {limit: 3}}]}
`
	alice, docs := &millrace.Viewer{ID: "alice", Attributes: map[string]any{"country": "de"}}, []Document{parse(t, src)}
	whole, err := Serve(docs, names{"feed home", "field nosuch"})
	if err != nil || whole.Unfit() != nil || len(whole.Assign("home", alice).Experiments) != 1 {
		t.Fatalf("%v, %v, %+v", err, whole.Unfit(), whole.Assign("home", alice))
	}
	s, err := Serve(docs, names{"feed home"})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Unfit().Error(); got != "test.yaml: line 17, column 55: experiments[0].variants[1].set.filter: filter: no field nosuch in record" {
		t.Errorf("%q", got)
	}
	if got := s.Assign("home", alice).Experiments; len(got) != 1 || got[0].Experiment != "other" {
		t.Errorf("alice has %+v", got)
	}
	if come, leave := fmt.Sprint(s.Diff(whole)), fmt.Sprint(whole.Diff(s)); !strings.Contains(come, "experiment fresher: slots") || !strings.Contains(come, "come to") || !strings.Contains(leave, "leave") {
		t.Errorf("when it fits again: %s; when it does not any more: %s", come, leave)
	}
	others := 0
	for i := range 1000 {
		for _, x := range s.Assign("home", &millrace.Viewer{ID: fmt.Sprint("v", i), Attributes: map[string]any{"country": "de"}}).Experiments {
			if others++; x.Experiment != "other" {
				t.Fatalf("%+v", x)
			}
		}
	}
	if others < 300 {
		t.Errorf("%d of 1000 are in the other one", others)
	}
	if _, there := s.Again("fresher", "treatment", 1); there {
		t.Error("a later page has the variant")
	}
	if x := s.Explain("home", alice)[0]; x.Cause != CauseUnfit || !strings.HasSuffix(x.Why, "sets a filter, and no field nosuch in record") {
		t.Errorf("%+v", x)
	}
	if d := s.Experiments()[0]; d.Unfit == "" || len(d.Rule.Slots)+len(d.Rule.Forced) > 0 {
		t.Errorf("%+v", d)
	}
	taker := parse(t, `experiments: [{name: taker, layer: ranking, feeds: [home], state: draft, slots: [0-9], share: 0, variants: [{name: all, weight: 10000}]}]`)
	taker.Name = "taker.yaml"
	if _, err := Admit(append(docs, taker), names{"feed home"}); err == nil || !strings.Contains(err.Error(), "taker.yaml: line 1, column 81: experiments[0].slots: experiment fresher in test.yaml has slots 0-9") {
		t.Errorf("%v", err)
	}
	if _, err := Admit(docs, names{"feed home"}); err == nil || !strings.Contains(err.Error(), "no field nosuch") {
		t.Errorf("%v", err)
	}
}
