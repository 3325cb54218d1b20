package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/offsets"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
)

// Whatever the assignment, and whichever nodes are slow, broken or behind, the
// answer is that of one machine which holds the partitions that the coverage
// says were answered; and a partition is missing only when no replica of it
// works.
func TestAnswersEqualOneMachine(t *testing.T) {
	eachWorld(t, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 6))
			w := randomWorld(t, r)
			b := w.broker(
				feeds.Feed{Name: "plain", Model: "coarse"},
				feeds.Feed{Name: "capped", Model: "coarse", CapPerEntity: 1 + r.IntN(3)},
				feeds.Feed{Name: "objects", Model: "coarse", DistinctObjects: true},
				feeds.Feed{Name: "both", Model: "coarse", DistinctObjects: true, CapPerEntity: 1 + r.IntN(3)},
			)
			for range 4 {
				req := randomRequest(r)
				if msg := w.check(b, req); msg != "" {
					t.Fatalf("seed %d: %s\nrequest %v", seed, msg, req)
				}
			}
		})
	})
}

func randomWorld(t *testing.T, r *rand.Rand) *world {
	w := newWorld(t, 1+r.IntN(7), 1)
	w.fill(r, 30, 20+r.IntN(200))
	first := w.m.Assignment()
	names, a := first.Nodes(), topology.Assignment{Epoch: 1}
	for p := range a.Replicas {
		order := r.Perm(len(names))
		for _, i := range order[:min(1+r.IntN(3), len(order))] {
			a.Replicas[p] = append(a.Replicas[p], names[i])
		}
	}
	w.assign(a)
	for _, n := range w.nodes {
		switch r.IntN(8) {
		case 0:
			n.err = errors.New("broken")
		case 1:
			n.frozen = true
		case 2:
			n.behind = randomSet(r)
		case 3:
			n.delay = func() time.Duration { return 3 * usualDelay }
		}
	}
	return w
}

func randomSet(r *rand.Rand) (s topology.Set) {
	for p := range millrace.Partition(partition.Count) {
		if r.IntN(2) == 0 {
			s.Add(p)
		}
	}
	return s
}

func randomRequest(r *rand.Rand) *feedv1.GetFeedRequest {
	req := &feedv1.GetFeedRequest{
		Feed:   []string{"recent", "plain", "capped", "objects", "both"}[r.IntN(5)],
		Viewer: &feedv1.Viewer{Id: fmt.Sprint("viewer:", r.IntN(9))}, Entities: entityNames(1 + r.IntN(30)),
		Limit: proto.Int64(1 + r.Int64N(12)), Explain: r.IntN(2) == 0,
	}
	if r.IntN(3) == 0 {
		req.Types = []string{"like"}
	}
	if r.IntN(3) == 0 {
		req.From, req.To = timestamp(millrace.Time(1000*r.IntN(10))), timestamp(millrace.Time(1000*(10+r.IntN(10))))
	}
	return req
}

// works reports whether some replica of p answers.
func (w *world) works(p millrace.Partition) bool {
	for _, id := range w.m.Replicas(p) {
		if n := w.nodes[id]; n.err == nil && !n.frozen && !n.behind.Has(p) {
			return true
		}
	}
	return false
}

// check compares one answer with the one-machine answer; "" when all is well.
func (w *world) check(b *Broker, req *feedv1.GetFeedRequest) string {
	return w.checkAgainst(b, req, w.want)
}

// oneMachine gives the one-machine answer to a request for some of its entities.
type oneMachine func(b *Broker, req *feedv1.GetFeedRequest, keep func(millrace.Partition) bool) []oracle.Item

func (w *world) checkAgainst(b *Broker, req *feedv1.GetFeedRequest, one oneMachine) string {
	resp, err := b.GetFeed(w.t.Context(), req)
	any := false
	for _, e := range req.Entities {
		any = any || w.works(partition.Of(millrace.Entity(e)))
	}
	if err != nil {
		if any {
			return fmt.Sprintf("refused though somebody works: %v", err)
		}
		return ""
	}
	missing := map[millrace.Partition]string{}
	for _, m := range resp.Coverage.Missing {
		p := millrace.Partition(m.Partition)
		if w.works(p) {
			return fmt.Sprintf("partition %d is missing (%s) though a replica works", p, m.Reason)
		}
		missing[p] = m.Reason
	}
	want := one(b, req, func(p millrace.Partition) bool { return missing[p] == "" })
	if d := oracle.Diff(want, oracle.FeedItems(resp.Items)); d != "" {
		return d
	}
	told, err := offsets.Read(resp.Receipt)
	if err != nil {
		return err.Error()
	}
	for p, next := range told {
		if next.Content != 100+int64(p) || next.Features != 0 {
			return fmt.Sprintf("partition %d is told to be at %+v", p, next)
		}
	}
	if len(told) != int(resp.Coverage.PartitionsAnswered) {
		return fmt.Sprintf("%d applied offsets for %d partitions", len(told), resp.Coverage.PartitionsAnswered)
	}
	for _, it := range resp.Items {
		if it.Record.GetFields()["id"].GetStringValue() != it.Id {
			return fmt.Sprintf("item %s has record %v", it.Id, it.Record)
		}
	}
	return ""
}
