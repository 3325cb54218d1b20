//go:build linux

package cli

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/figure"
)

// alikeSpec is a model of features that the others of its kind share.
const alikeSpec = `
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

const alikeGolden = `{"features": {"likes": 0, "comments": 2, "talk": 4, "liked": false, "english": true, "busy": 0}, "score": 4, "record": {"likes": 0, "comments": 4, "language": "en"}}`

// TestRolloutShadows compares three feeds of one model: without shadows, with one
// and with five, which have their features in common, and rank every answer again.
// What callers get is the same, byte for byte; and five cost little more than one.
func TestRolloutShadows(t *testing.T) {
	lasts, measured := faultTime(t, time.Second)
	rounds, questions, follows := 1, 100, rollingFollows
	if measured {
		apart(t)
		rounds, questions, follows = 5, 10_000, 150
		lasts /= time.Duration(rounds)
	}
	c := startRollingCluster(t)
	for i := range 6 {
		c.push(c.pack(fmt.Sprintf(alikeSpec, fmt.Sprint("m", i), 1+0.1*float64(i)), alikeGolden, map[string]string{}))
	}
	feeds := []string{"none", "one", "five"}
	for i, shadows := range []string{"", "shadow: [m1]\nshadow_share: 1\n", "shadow: [m1, m2, m3, m4, m5]\nshadow_share: 1\n"} {
		c.define(feeds[i], "model: m0\nlimit: 20\n"+shadows)
	}
	var callers []*caller
	for _, feed := range feeds {
		l := newCaller(t, c.grpc, 5*time.Second, rollingRequests(feed, follows))
		l.closed(c.ctx, 2, lasts/3) // warms the caches
		callers = append(callers, l)
	}
	perSecond := 20.0
	if measured { // all rankings must fit, or the broker drops some
		perSecond = callers[2].closed(c.ctx, 8, lasts).goodput() / 16
	}
	cpu, p99 := make([][]float64, len(feeds)), make([][]float64, len(feeds))
	ranked, asked := 0.0, 0.0
	for range rounds {
		for i, feed := range feeds {
			clitest.WaitFor(c.ctx, t, "the processes to rest", c.rests())
			before, compared := c.usage(), c.ranked("five")
			got := callers[i].open(c.ctx, perSecond, lasts)
			got.want(t, feed)
			clitest.WaitFor(c.ctx, t, "the processes to rest", c.rests()) // and shadows to have ranked
			used := c.usage().minus(before)
			cpu[i] = append(cpu[i], (used.nodes+used.broker).Seconds()/float64(got.asked()))
			p99[i] = append(p99[i], got.quantile(0.99).Seconds())
			if feed == "five" {
				ranked, asked = ranked+c.ranked("five")-compared, asked+5*float64(got.asked())
			}
		}
	}
	t.Logf("five shadows ranked %.0f of %.0f times", ranked, asked)
	if ranked == 0 || measured && ranked < 0.99*asked {
		t.Errorf("five shadows ranked %.0f of %.0f times", ranked, asked)
	}
	c.sameAnswers(questions, follows)
	if measured {
		median := func(all []float64) float64 {
			slices.Sort(all)
			return all[len(all)/2]
		}
		figure.Print("shadows_five_vs_one_cpu", median(cpu[2])/median(cpu[1]), "x")
		figure.Print("shadows_five_vs_one_p99", median(p99[2])/median(p99[1]), "x")
		figure.Print("shadows_five_vs_none_cpu", median(cpu[2])/median(cpu[0]), "x")
		figure.Print("shadows_five_vs_none_p99", median(p99[2])/median(p99[0]), "x")
		figure.Print("shadows_none_cpu", median(cpu[0])*1e6, "us")
		figure.Print("shadows_same_answers", float64(questions), "answers")
	}
}

// ranked is how often shadows of a feed have ranked an answer again.
func (c *rollingCluster) ranked(feed string) float64 {
	return metric(c.ctx, c.frontEnd.front, "millrace_broker_shadow_answers_total", `feed="`+feed+`"`, `outcome="compared"`)
}

// sameAnswers asks the same of the feed without and of that with five shadows, so
// many times, and holds the answers against each other, byte for byte, but for
// what is drawn anew for each.
func (c *rollingCluster) sameAnswers(questions, follows int) {
	c.t.Helper()
	reqs := rollingRequests("", follows)
	for i := range questions {
		var texts [2]string
		req := proto.CloneOf(reqs[i%len(reqs)])
		req.AsOf = timestamppb.New(req.AsOf.AsTime().Add(time.Duration(i) * time.Second))
		req.Limit = proto.Int64(int64(1 + i%20))
		for k, feed := range []string{"none", "five"} {
			req.Feed = feed
			resp, err := c.clients[0].GetFeed(c.ctx, req)
			c.check(err)
			texts[k] = asServed(resp)
		}
		if texts[0] != texts[1] {
			at := 0
			for at < min(len(texts[0]), len(texts[1])) && texts[0][at] == texts[1][at] {
				at++
			}
			c.t.Fatalf("answer %d is another beside shadows, from byte %d on:\n%.200q\n%.200q", i, at, texts[0][at:], texts[1][at:])
		}
	}
}

// asServed is an answer without its id, its token, and which node was asked and
// how far that has read.
func asServed(resp *feedv1.GetFeedResponse) string {
	resp.Coverage.TimelinesBehind = 0
	resp.Receipt.Applied, resp.Receipt.AppliedDigest, resp.Receipt.AnswerId, resp.NextPageToken = nil, "", "", ""
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(resp)
	if err != nil {
		panic(err)
	}
	return string(text)
}
