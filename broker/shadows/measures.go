package shadows

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/broker/series"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/shadow"
)

// measures adds up how shadows differ from the models that serve, since the broker started.
// A shadow that has ranked nothing for [series.Idle] is forgotten. measures is a
// [prometheus.Collector]. An exposure ([exposure.Record]), the record of what one answer
// showed, holds the same figures for that answer.
type measures struct {
	mu    sync.Mutex
	tally shadow.Tally // guarded by mu
}

// measure compares the rankings of the shadows with that of the answer's model, and adds
// the comparisons to shown, the record of what the answer showed. o holds all of these
// rankings.
func (s *Shadows) measure(a Sample, o fanout.Outcome, shown *exposure.Record) {
	q := a.Question
	served := fanout.Merge(o.Parts, int(q.Query.Limit), q.Query.DistinctObjects)
	ranking := rankingOf(q, served)
	var compared []int // indexes of Query.Beside
	var failed []*nodev1.Model
	for i, m := range q.Query.Beside {
		if err := s.measureOne(q, shown, ranking, o, i); err != nil {
			failed = append(failed, m)
			s.log.Debug("a shadow did not rank", "feed", q.FeedName, "model", m.Name, "fault", err)
			continue
		}
		compared = append(compared, i)
		s.answers.WithLabelValues(append(labelsOf(q, m), shadowCompared)...).Inc()
	}
	defer s.fail(a, shown, failed) // runs last, so that shown.Shadows has the compared shadows first
	if len(compared) == 0 {
		return
	}
	shown.ShadowShare = a.Share
	for i := range o.Parts {
		shown.Looked += int(o.Parts[i].Resp.GetLooked())
		shown.Lacking = addLacking(shown.Lacking, o.Parts[i].Resp.GetLacking())
	}
	scoreShown(shown, served, compared)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.Add(shown)
}

// fail counts shadows that failed to rank an answer again, and adds them to shown.
func (s *Shadows) fail(a Sample, shown *exposure.Record, failed []*nodev1.Model) {
	if len(failed) > 0 {
		shown.ShadowShare = a.Share
	}
	for _, m := range failed {
		s.answers.WithLabelValues(append(labelsOf(a.Question, m), shadowFailed)...).Inc()
		shown.Shadows = append(shown.Shadows, exposure.Model{Name: m.Name, Version: m.Version, Checksum: m.Sum})
	}
}

// measureOne compares the ranking of the i-th shadow of Query.Beside with served, the
// ranking of the answer's model, and adds the comparison to shown. After an error shown is
// unchanged.
func (s *Shadows) measureOne(q *questions.Question, shown *exposure.Record, served stats.Ranking[string], o fanout.Outcome, i int) error {
	parts, version, err := fanout.Beside(o.Parts, i)
	if err != nil {
		return err
	}
	m := q.Query.Beside[i]
	entries := fanout.Merge(parts, int(q.Query.Limit), q.Query.DistinctObjects)
	x, err := s.compare(served, rankingOf(q, entries), labelsOf(q, m))
	if err != nil {
		return err
	}
	for _, pt := range o.Parts {
		r := pt.Resp.GetBeside()[i]
		x.ServedNanos, x.ServedScored = x.ServedNanos+pt.Resp.GetScoringNs(), x.ServedScored+pt.Resp.GetStages().GetScored()
		x.Nanos, x.Scored, x.Looked = x.Nanos+r.GetScoringNs(), x.Scored+r.GetScored(), x.Looked+int(r.GetLooked())
		x.Lacking = addLacking(x.Lacking, r.GetLacking())
	}
	for k := range entries {
		e := &entries[k]
		x.Items = append(x.Items, exposure.ShadowItem{ID: strings.Clone(string(e.ID)), Entity: strings.Clone(string(e.Entity)), Type: strings.Clone(string(e.Type)), Score: e.Score})
	}
	shown.Shadows = append(shown.Shadows, exposure.Model{Name: m.Name, Version: cmp.Or(m.Version, strings.Clone(version)), Checksum: m.Sum})
	shown.ShadowRankings = append(shown.ShadowRankings, x)
	return nil
}

// addLacking adds to sum, for each feature by name, how many items lack it.
func addLacking(sum []exposure.Lacked, more map[string]int64) []exposure.Lacked {
	for _, name := range slices.Sorted(maps.Keys(more)) {
		i := slices.IndexFunc(sum, func(l exposure.Lacked) bool { return l.Feature == name })
		if i < 0 {
			i, sum = len(sum), append(sum, exposure.Lacked{Feature: strings.Clone(name)})
		}
		sum[i].Items += int(more[name])
	}
	return sum
}

// scoreShown adds to each item that was shown the scores that the compared shadows give
// it. compared has the shadows' indexes in Query.Beside, and the scores come in its order.
// An item gets none if it is not in again, the second ranking by the answer's own model, or
// if the score of a compared shadow is missing.
func scoreShown(shown *exposure.Record, again []fanout.Entry, compared []int) {
	type key struct{ entity, typ, id string }
	scored := map[key]*nodev1.Item{}
	for i := range again {
		e := &again[i]
		scored[key{string(e.Entity), string(e.Type), string(e.ID)}] = e.Item
	}
	for i := range shown.Items {
		it := &shown.Items[i]
		told := scored[key{it.Entity, it.Type, it.ID}].GetExplain().GetShadow()
		for _, at := range compared {
			if at >= len(told) {
				it.Shadows = nil
				break
			}
			it.Shadows = append(it.Shadows, told[at].Score)
		}
	}
}

// shadowDesc describes a gauge of shadows; more has the labels beside feed, model, shadow
// and version.
func shadowDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("millrace_broker_shadow_"+name, help+" Of sampled answers since the broker started.", append([]string{"feed", "model", "shadow", "version"}, more...), nil)
}

var (
	descShadowScore   = shadowDesc("score", "Quantiles of scores: served (of items served, by their model), shadow (of the shadow's items, by the shadow), shift (of items served: what the shadow gives more).", "of", "quantile")
	descShadowType    = shadowDesc("type_share", "The part of the items that a content type has: of those served, and of the shadow's. Types beyond a hundred are (others).", "of", "type")
	descShadowAuthors = shadowDesc("author_shift", "Mean part of an answer's items that would be of other authors.")
	descShadowCost    = shadowDesc("candidate_seconds", "What a candidate takes to be scored: by the answer's model (served), with what is kept of earlier questions and left out by bounds, and by the shadow.", "of")
	descShadowLacking = shadowDesc("features_missing", "The part of items that lack a feature of the answer's model (served) or of the shadow, of those looked at.", "of", "feature")
)

// Describe implements [prometheus.Collector].
func (m *measures) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descShadowScore, descShadowType, descShadowAuthors, descShadowCost, descShadowLacking} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *measures) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	m.tally.Forget(millrace.TimeOf(time.Now().Add(-series.Idle)))
	reports := m.tally.Reports()
	m.mu.Unlock()
	for i := range reports {
		if reports[i].Answers == 0 {
			continue
		}
		collectShadow(out, &reports[i])
	}
}

// collectShadow sends the gauges of one shadow of one feed.
func collectShadow(out chan<- prometheus.Metric, r *shadow.Report) {
	gauge := func(d *prometheus.Desc, x float64, more ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, append([]string{r.Feed, r.Model, r.Shadow, r.Version}, more...)...)
	}
	told := func(d *prometheus.Desc, x *float64, more ...string) {
		if x != nil {
			gauge(d, *x, more...)
		}
	}
	for _, x := range r.Scores {
		at := fmt.Sprint(x.Quantile)
		told(descShadowScore, x.Served, "served", at)
		told(descShadowScore, x.Shadow, "shadow", at)
		told(descShadowScore, x.Shift, "shift", at)
	}
	for _, x := range r.Types {
		gauge(descShadowType, x.Served, "served", x.Type)
		gauge(descShadowType, x.Shadow, "shadow", x.Type)
	}
	gauge(descShadowAuthors, r.AuthorShift)
	gauge(descShadowCost, r.ServedCost.Nanos/1e9, "served")
	gauge(descShadowCost, r.ShadowCost.Nanos/1e9, "shadow")
	for _, x := range r.Lacking {
		told(descShadowLacking, x.Served, "served", x.Feature)
		told(descShadowLacking, x.Shadow, "shadow", x.Feature)
	}
}
