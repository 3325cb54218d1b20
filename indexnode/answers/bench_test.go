package answers

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// benchNode returns a node that holds 3,000 entities, 20 records each, and
// requests for 1,000 of them.
func benchNode(b *testing.B) (*node, []*nodev1.QueryRequest) {
	const entities, rows = 3000, 20
	n, h := openNode(b, cache.Config{})
	next := map[millrace.Partition]millrace.Offset{}
	var names []string
	for i := range entities {
		names = append(names, fmt.Sprint("member:", i))
		var events []nodetest.Event
		for j := range rows {
			body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"%d/%d","actor":%q,"verb":"post","created_at":%d,"object":"o%d","language":"en","text":"About photos of a day at sea","likes":%d}`,
				i, j, names[i], 1_700_000_000_000+int64(j*1000*(1+i%97)), (i*j)%999, (i*31+j)%12))
			if err != nil {
				b.Fatal(err)
			}
			events = append(events, nodetest.Event{Stream: kafka.Timeline, Entity: millrace.Entity(names[i]), Schema: schemas.Activity(), Body: body})
		}
		p := partition.Of(millrace.Entity(names[i]))
		next[p] += rows
		if err := nodetest.Bring(b.Context(), h, events, next[p]); err != nil {
			b.Fatal(err)
		}
	}
	var requests []*nodev1.QueryRequest
	for i := range 9 {
		var asked []string
		for j := range 1000 {
			asked = append(asked, names[(i*331+j*7)%entities])
		}
		requests = append(requests, &nodev1.QueryRequest{
			Entities: nodetest.Pack(asked...), Types: []string{"post"}, ToMs: int64(millrace.MaxTime), AsOfMs: 1_700_010_000_000, Limit: 20,
			Model: "home", Filter: `record.language in ["en", "de"] && record.likes >= 3`, Viewer: &feedv1.Viewer{Id: "member:1"},
		})
	}
	return n, requests
}

// BenchmarkQuery is a node's part of a feed, from the decoded request to the
// response, cache warm.
func BenchmarkQuery(b *testing.B) {
	n, requests := benchNode(b)
	var candidates int64
	ask := func() {
		for _, req := range requests {
			resp, err := n.query(b.Context(), req)
			if err != nil {
				b.Fatal(err)
			}
			candidates = resp.Stages.Candidates
		}
	}
	ask()
	b.ReportAllocs()
	began, done := nodetest.CPUTime(), 0
	for b.Loop() {
		ask()
		done++
	}
	us := float64((nodetest.CPUTime() - began).Microseconds()) / float64(done*len(requests))
	b.ReportMetric(us, "us/query")
	b.ReportMetric(1000*us/float64(candidates), "ns/candidate")
	b.ReportMetric(float64(candidates), "candidates")
}

// BenchmarkExplain gives the figure node_explained_vs_plain: a node's part of an
// explained feed against that of the same feed, by turns.
func BenchmarkExplain(b *testing.B) {
	n, requests := benchNode(b)
	ask := func(explain bool) time.Duration {
		began := nodetest.CPUTime()
		for _, req := range requests {
			req.Explain = explain
			if _, err := n.query(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
		return nodetest.CPUTime() - began
	}
	for range 4 {
		ask(true)
		ask(false)
	}
	var plain, explained time.Duration
	for b.Loop() {
		plain += ask(false)
		explained += ask(true)
	}
	figure.Print("node_explained_vs_plain", float64(explained)/float64(plain), "x")
}

// besideSpec is a model of features that the others of its kind share.
const besideSpec = `
name: %s
version: "1"
schemas: [millrace.Activity]
features:
  likes: log1p(record.likes)
  comments: sqrt(record.comments)
  talk: record.comments / (record.likes + 1)
  liked: record.likes > 3
  english: record.language == "en"
  busy: min(record.likes, 5) * record.comments
scorer: linear
parameters: {bias: 0, weights: {likes: %g, comments: 0.5, talk: 0.25, liked: -0.001, english: 2, busy: 0.125}}
`

// besideModels admits so many models of besideSpec.
func besideModels(b *testing.B, n *node, count int) (models []*nodev1.Model) {
	b.Helper()
	for i := range count {
		name, dir := fmt.Sprint("m", i), b.TempDir()
		for file, text := range map[string]string{
			modelpack.SpecFile: fmt.Sprintf(besideSpec, name, 1+0.1*float64(i)), modelpack.CardFile: "# M\n",
			modelpack.GoldenFile: `{"features": {"likes": 0, "comments": 2, "talk": 4, "liked": false, "english": true, "busy": 0}, "score": 4, "record": {"likes": 0, "comments": 4, "language": "en"}}` + "\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				b.Fatal(err)
			}
		}
		pack, err := modelpack.Seal(dir, relevance.ShippedSchemas())
		if err == nil {
			_, err = pack.Admit(n.models, name, relevance.ShippedSchemas())
		}
		if err != nil {
			b.Fatal(err)
		}
		models = append(models, &nodev1.Model{Name: name, Version: "1", Sum: name})
	}
	return models
}

// BenchmarkBeside gives the figures beside_five_vs_one and beside_five_vs_none: a
// node's part of a sampled answer with five shadows beside its feed's own model,
// against one with one shadow and one without, by turns.
func BenchmarkBeside(b *testing.B) {
	n, requests := benchNode(b)
	models := besideModels(b, n, 6)
	ask := func(beside []*nodev1.Model) time.Duration {
		began := nodetest.CPUTime()
		for _, req := range requests {
			req.Model, req.ModelVersion, req.ModelSum, req.Beside = models[0].Name, "1", models[0].Sum, beside
			req.Measure = len(beside) > 0
			resp, err := n.query(b.Context(), req)
			if err != nil || len(resp.Beside) != len(beside) {
				b.Fatal(err)
			}
			for _, r := range resp.Beside {
				if r.Error != "" || len(r.Items) == 0 {
					b.Fatal(r)
				}
			}
		}
		return nodetest.CPUTime() - began
	}
	var alone, one, five time.Duration
	ask(models[1:])
	ask(models[1:2])
	for b.Loop() {
		alone += ask(nil)
		one += ask(models[1:2])
		five += ask(models[1:])
	}
	figure.Print("beside_five_vs_one", float64(five)/float64(one), "x")
	figure.Print("beside_five_vs_none", float64(five)/float64(alone), "x")
	b.ReportMetric(float64(alone.Microseconds())/float64(b.N*len(requests)), "us/query")
}

// BenchmarkJudge gives the figure node_judging_vs_query: what it takes to judge a
// version by a question that it ranked well, against the question. What the scan
// looks at for it is query_judged_finite_vs_not of package query.
func BenchmarkJudge(b *testing.B) {
	n, requests := benchNode(b)
	model := besideModels(b, n, 1)[0]
	id := relevance.ID{Name: model.Name, Version: model.Version, Sum: model.Sum}
	m, err := n.models.Find(id)
	if err != nil {
		b.Fatal(err)
	}
	ask := func() time.Duration {
		began := nodetest.CPUTime()
		for _, req := range requests {
			req.Model, req.ModelVersion, req.ModelSum = model.Name, model.Version, model.Sum
			if _, err := n.query(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
		return nodetest.CPUTime() - began
	}
	const times = 1000 // so that the clock tells
	judge := func() time.Duration {
		began := nodetest.CPUTime()
		for range times {
			for _, req := range requests {
				by := query.Measured{Took: time.Millisecond, Scored: 20_000, Finite: true}
				var cost costWatch
				w := cost.begin(n.condemned, id, m, true)
				for range 20 {
					if err := w.Scored(1000, 0, 50*time.Microsecond); err != nil {
						b.Fatal(err)
					}
				}
				cost.end(by)
				n.condemned.judgeScores(b.Context(), req, id, m, by)
			}
		}
		return nodetest.CPUTime() - began
	}
	ask()
	var asked, judged time.Duration
	for b.Loop() {
		asked += ask()
		judged += judge()
	}
	b.ReportMetric(float64(judged.Nanoseconds())/float64(b.N*times*len(requests)), "ns/judgement")
	figure.Print("node_judging_vs_query", 100*float64(judged)/times/float64(asked), "%")
}
