package broker

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/series"
	"github.com/millrace/millrace/internal/stats"
)

// shadowedFeed is ranked by a model whose scores tie, and all its answers again
// by recency.
var shadowedFeed = feeds.Feed{Name: "shadowed", Model: "coarse", Shadow: []string{"recency"}, ShadowShare: 1, Limit: 20}

// outcomes returns what became of the answers that recency was to rank again.
func (b *Broker) outcomes(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, outcome := range []string{"compared", "partial", "failed", "dropped"} {
		var m dto.Metric
		if err := shadowAnswers(b).WithLabelValues("shadowed", "coarse", "recency", "", outcome).Write(&m); err != nil {
			t.Fatal(err)
		}
		all[outcome] = int(m.Counter.GetValue())
	}
	return all
}

// shadowsAtOnce is how many answers are ranked again at a time.
const shadowsAtOnce = 4

// shadowAnswers counts what became of answers that shadows were to rank.
func shadowAnswers(b *Broker) *prometheus.CounterVec {
	return b.shadows.Collectors()[0].(*series.Fading).Vec.(*prometheus.CounterVec)
}

// shadowHistogram is the histogram of shadows with a name.
func shadowHistogram(b *Broker, name string) *prometheus.HistogramVec {
	for _, c := range b.shadows.Collectors() {
		descs := make(chan *prometheus.Desc, 10)
		c.Describe(descs)
		f, is := c.(*series.Fading)
		if !is {
			continue
		}
		if h, is := f.Vec.(*prometheus.HistogramVec); is && strings.Contains((<-descs).String(), `"millrace_broker_`+name+`"`) {
			return h
		}
	}
	panic(name)
}

// observed returns the mean and the number of what a histogram has seen.
func observed(t *testing.T, o prometheus.Observer) (mean float64, n int) {
	t.Helper()
	var m dto.Metric
	if err := o.(prometheus.Metric).Write(&m); err != nil {
		t.Fatal(err)
	}
	n = int(m.Histogram.GetSampleCount())
	return m.Histogram.GetSampleSum() / float64(n), n
}

func itemsOf(resp *feedv1.GetFeedResponse) (ids []string) {
	for _, it := range resp.Items {
		ids = append(ids, it.Entity+"\x00"+it.Type+"\x00"+it.Id)
	}
	return ids
}

func close2(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

// A shadow's figures are those of the two answers, each asked for by itself;
// and the answer is the same byte for byte with shadows and without.
func TestShadowsAreCompared(t *testing.T) {
	w := newWorld(t, 3, 2)
	w.fill(rand.New(rand.NewPCG(8, 8)), 20, 30)
	plain := shadowedFeed
	plain.Shadow, plain.ShadowShare = nil, 0
	b, without := w.broker(shadowedFeed), w.broker(plain)
	const n = 50
	var overlap, all, rbo, tau float64
	for i := range n {
		req := rankedRequest(int64(5 + i))
		req.Feed, req.AsOf = "shadowed", timestamp(timeAt(1000+i))
		served, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		other, err := without.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, resp := range []*feedv1.GetFeedResponse{served, other} { // what is drawn anew for each, and who was asked
			resp.Receipt.AnswerId, resp.Receipt.Applied, resp.NextPageToken = "", nil, ""
		}
		if !proto.Equal(served, other) {
			t.Fatal("with shadows the answer is another than without")
		}
		req.Model = "recency"
		if other, err = without.GetFeed(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		x, y := ranking(served), ranking(other)
		for _, c := range []struct {
			depth int
			sum   *float64
		}{{10, &overlap}, {len(x.Items), &all}} {
			share, err := stats.Overlap(x, y, c.depth)
			if err != nil {
				t.Fatal(err)
			}
			*c.sum += share / n
		}
		biased, err := stats.RankBiasedOverlap(x, y, 0.9, stats.TiesEqual)
		if err != nil {
			t.Fatal(err)
		}
		rbo += biased.Ext / n
		order, err := stats.KendallTau(x, y)
		if err != nil {
			t.Fatal(err)
		}
		tau += order / n
		b.shadows.Wait()
	}
	if got := b.outcomes(t); got["compared"] != n {
		t.Fatalf("of %d answers: %v", n, got)
	}
	labels := []string{"shadowed", "coarse", "recency", ""}
	for name, c := range map[string]struct {
		got  prometheus.Observer
		want float64
	}{
		"overlap at 10":    {shadowHistogram(b, "shadow_overlap").WithLabelValues(append(slices.Clip(labels), "10")...), overlap},
		"overlap at limit": {shadowHistogram(b, "shadow_overlap").WithLabelValues(append(slices.Clip(labels), "limit")...), all},
		"rbo":              {shadowHistogram(b, "shadow_rbo").WithLabelValues(labels...), rbo},
		"tau":              {shadowHistogram(b, "shadow_kendall_tau").WithLabelValues(labels...), tau},
	} {
		if mean, seen := observed(t, c.got); seen != n || !close2(mean, c.want) {
			t.Errorf("%s: %v of %d, not %v of %d", name, mean, seen, c.want, n)
		}
	}
	if overlap > 0.99 || overlap < 0.01 {
		t.Errorf("the models rank alike or have nothing in common: %v of the first ten are shared", overlap)
	}
}

// ranking is an answer as a ranking.
func ranking(resp *feedv1.GetFeedResponse) stats.Ranking[string] {
	r := stats.Ranking[string]{Items: itemsOf(resp)}
	for _, it := range resp.Items {
		r.Scores = append(r.Scores, it.Score)
	}
	return r
}

// Shadows that take for ever hold so many answers and no more, no request
// waits for them, and where the limiter is half full there are none.
func TestShadowsAreTheFirstThingDropped(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.fill(rand.New(rand.NewPCG(8, 9)), 20, 20)
	b := w.broker(shadowedFeed)
	n := w.nodes["n0"]
	n.set(func() { n.stuck = "recency" })
	ask := func() {
		t.Helper()
		req := rankedRequest(5)
		req.Feed = "shadowed"
		if _, err := b.GetFeed(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		ask()
	}
	if got := b.outcomes(t); got["dropped"] != 10-shadowsAtOnce || got["compared"]+got["failed"] != 0 {
		t.Errorf("ten answers, whose shadows take for ever: %v", got)
	}
	b.end() // as Close does, and does not wait for a node
	b.shadows.Wait()
	if got := b.outcomes(t); got["failed"] != shadowsAtOnce {
		t.Errorf("after the end: %v", got)
	}

	busy := w.broker(shadowedFeed)
	n.set(func() { n.stuck = "" })
	for range busy.admission.Limit() / 2 {
		inFlight, err := busy.admission.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer inFlight.Leave()
	}
	b = busy // which ask asks
	ask()
	busy.shadows.Wait()
	if got := busy.outcomes(t); got["dropped"] != 1 || got["compared"] != 0 {
		t.Errorf("a limiter that is half full: %v", got)
	}
}

// A ranking by shadows takes nothing of the question that is being answered.
func TestShadowsHaveAQuestionOfTheirOwn(t *testing.T) {
	b := newWorld(t, 1, 1).broker(shadowedFeed)
	req := rankedRequest(5)
	req.Feed, req.Explain = "shadowed", true
	q, err := b.read(t.Context(), req, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	before := proto.CloneOf(q.Query)
	again := b.sample(q, fanout.Outcome{})
	if again == nil || again.Query == q.Query || again.Groups[0] == q.Groups[0] || again.Groups[0].Query != again.Query || q.Groups[0].Query != q.Query || !proto.Equal(q.Query, before) || !again.Aside || again.Query.Explain {
		t.Errorf("%+v of %+v", again, q)
	}
}

// What is no first page, or lacks partitions, is not compared; and a share of
// none is none.
func TestWhatShadowsLeaveOut(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(8, 10)), 20, 20)
	never := shadowedFeed
	never.ShadowShare = 0
	for name, c := range map[string]struct {
		feed feeds.Feed
		ask  func(b *Broker, req *feedv1.GetFeedRequest)
		want map[string]int
	}{
		"a later page": {shadowedFeed, func(b *Broker, req *feedv1.GetFeedRequest) {
			for range 3 {
				resp, err := b.GetFeed(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				req.PageToken = resp.NextPageToken
			}
		}, map[string]int{"compared": 1}},
		"no share": {never, func(b *Broker, req *feedv1.GetFeedRequest) {
			for range 100 {
				if _, err := b.GetFeed(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}
		}, map[string]int{}},
		"the request names the shadow": {shadowedFeed, func(b *Broker, req *feedv1.GetFeedRequest) {
			req.Model = "recency"
			if _, err := b.GetFeed(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}, map[string]int{}},
		"a partial answer": {shadowedFeed, func(b *Broker, req *feedv1.GetFeedRequest) {
			n := w.nodes["n1"]
			n.set(func() { n.err = fanout.ErrUnreachable })
			defer n.set(func() { n.err = nil })
			resp, err := b.GetFeed(t.Context(), req)
			if err != nil || len(resp.Coverage.Missing) == 0 {
				t.Fatalf("%v, %v", resp, err)
			}
		}, map[string]int{}},
		"a partial ranking": {shadowedFeed, func(b *Broker, req *feedv1.GetFeedRequest) {
			n := w.nodes["n1"]
			n.set(func() {
				n.refusal = func(req *nodev1.QueryRequest) error {
					if len(req.Beside) > 0 {
						return fanout.ErrUnreachable
					}
					return nil
				}
			})
			if _, err := b.GetFeed(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			b.shadows.Wait()
			n.set(func() { n.refusal = nil })
		}, map[string]int{"partial": 1}},
	} {
		b := w.broker(c.feed)
		req := rankedRequest(5)
		req.Feed = "shadowed"
		c.ask(b, req)
		b.shadows.Wait()
		for outcome, n := range b.outcomes(t) {
			if n != c.want[outcome] {
				t.Errorf("%s: %d %s, not %d", name, n, outcome, c.want[outcome])
			}
		}
	}
}
