//go:build linux

package campaign

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
)

// whole waits until the cluster is as it should be: every acknowledged input
// is in the log, every replica has applied all of it and serves, and every
// broker answers for every partition.
func (w *world) whole(ctx context.Context) error {
	began := time.Now()
	if err := eventually(ctx, patience, func(context.Context) error {
		if err := w.truth.missing(began); err != nil {
			return err
		}
		return w.truth.missing(time.Now().Add(-staleAfter / 2)) // what came since is not held up either
	}); err != nil {
		return err
	}
	var ends [kafka.Streams]offsets
	if err := eventually(ctx, patience, func(ctx context.Context) (err error) {
		ends, err = w.ends(ctx)
		return err
	}); err != nil {
		return err
	}
	for i, node := range w.clients {
		if err := eventually(ctx, patience, func(ctx context.Context) error { return w.caughtUp(ctx, i, node, &ends, true) }); err != nil {
			return fmt.Errorf("node-%d: %w", i+1, err)
		}
	}
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "probe"}}
	for _, e := range w.probes {
		req.Entities = append(req.Entities, string(e))
	}
	for i, c := range w.asker.clients {
		if err := eventually(ctx, patience, func(ctx context.Context) error {
			resp, err := c.GetFeed(ctx, req)
			if err != nil {
				return err
			}
			if n := len(resp.Coverage.Missing); n > 0 || flagged(resp) {
				return fmt.Errorf("%d partitions are missing, the first is %v; %d timelines are behind", n, resp.Coverage.Missing[:min(1, n)], resp.Coverage.TimelinesBehind)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("broker-%d: %w", i+1, err)
		}
	}
	for _, p := range slices.Concat(w.nodes, w.brokers) {
		if err := eventually(ctx, patience, func(ctx context.Context) error {
			since, err := w.metric(ctx, p.name, "millrace_cluster_fault_seconds")
			if err == nil && since > 0 {
				err = fmt.Errorf("it has doubted etcd for %.0f s", since)
			}
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	w.wholes = append(w.wholes, wholeness{time.Now(), ends})
	return nil
}

// quiet ends the partitioners, and returns where the logs end once every node
// has applied all of them: nothing comes after that.
func (w *world) quiet() (ends [kafka.Streams]offsets, err error) {
	for _, p := range w.partitioners {
		p.kill(syscall.SIGTERM)
	}
	for i, node := range w.clients {
		if err := eventually(w.ctx, patience, func(ctx context.Context) (err error) {
			if ends, err = w.ends(ctx); err != nil {
				return err
			}
			return w.caughtUp(ctx, i, node, &ends, false)
		}); err != nil {
			return ends, fmt.Errorf("node-%d: %w", i+1, err)
		}
	}
	return ends, nil
}

// ends returns where the streams' committed records end now, once the reader is
// there too.
func (w *world) ends(ctx context.Context) (ends [kafka.Streams]offsets, err error) {
	for stream, topic := range w.truth.topics {
		listed, err := w.adm.ListCommittedOffsets(ctx, topic)
		if err == nil {
			err = listed.Error()
		}
		if err != nil {
			return ends, err
		}
		listed.Each(func(o kadm.ListedOffset) { ends[stream][o.Partition] = o.Offset })
		for p, end := range ends[stream] {
			if err := w.truth.reached(ctx, stream, millrace.Partition(p), end); err != nil {
				return ends, err
			}
		}
	}
	return ends, nil
}

// caughtUp says what a node lacks of the partitions that it hosts. One that is
// fresh does not call itself behind either.
func (w *world) caughtUp(ctx context.Context, i int, node nodev1.NodeServiceClient, ends *[kafka.Streams]offsets, fresh bool) error {
	id := millrace.NodeID(fmt.Sprintf("node-%d", i+1))
	hosted := 0
	for _, owners := range w.owners {
		if slices.Contains(owners, id) {
			hosted++
		}
	}
	resp, err := node.Query(ctx, w.probe(id))
	if err != nil {
		return err
	}
	got := resp.GetPartitions()
	for p, why := range got.GetMissing() {
		return fmt.Errorf("%d of %d partitions are missing; %d: %s", len(got.Missing), hosted, p, why)
	}
	if len(got.Answered) != hosted {
		return fmt.Errorf("%d partitions answered of %d", len(got.Answered), hosted)
	}
	for i, p := range got.Answered {
		for stream, at := range [kafka.Streams]int64{got.AppliedContent[i], got.AppliedFeatures[i]} {
			if at < ends[stream][p] {
				return fmt.Errorf("%s/%d is applied to %d of %d", w.truth.topics[stream], p, at, ends[stream][p])
			}
		}
	}
	for i, lag := range got.LagMs {
		if fresh && lag > 0 {
			return fmt.Errorf("partition %d says that it is %d ms behind", got.Answered[i], lag)
		}
	}
	return nil
}

// metric adds up the samples of a metric of a process.
func (w *world) metric(ctx context.Context, process, name string) (sum float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+local(w.admin[process])+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		at := max(strings.LastIndexByte(s.Text(), ' '), 0) // labels may have spaces
		series, value := s.Text()[:at], s.Text()[at+1:]
		if series == name || strings.HasPrefix(series, name+"{") {
			x, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum += x
		}
	}
	return sum, nil
}

// digests ends the nodes in good order, and compares what their stores have:
// replicas with equal offsets have equal digests.
func (w *world) digests() (compared int) {
	ends, err := w.quiet()
	if err != nil {
		w.told("lost", "at the end: "+err.Error())
		return 0
	}
	stores := map[millrace.NodeID]*store.Store{}
	for _, p := range w.nodes {
		p.kill(syscall.SIGTERM)
		s, err := store.Open(filepath.Join(w.dir, p.name, "store"), store.Options{MinFreeBytes: -1})
		if err != nil {
			w.told("differing", fmt.Sprintf("%s: %v", p.name, err))
			return 0
		}
		defer s.Close()
		stores[millrace.NodeID(p.name)] = s
	}
	for p, owners := range w.owners {
		n := millrace.Partition(p)
		first := stores[owners[0]]
		if at := applied(first, n); at[content] < ends[content][p] || at[features] < ends[features][p] {
			w.told("lost", fmt.Sprintf("partition %d of %s is applied to %v, the logs end at %d and %d", p, owners[0], at, ends[content][p], ends[features][p]))
		}
		for _, other := range owners[1:] {
			if a, b := applied(first, n), applied(stores[other], n); a != b {
				w.told("lost", fmt.Sprintf("partition %d is applied to %v on %s, to %v on %s", p, a, owners[0], b, other))
			} else if a, b := first.Digest(n), stores[other].Digest(n); a != b {
				w.told("differing", fmt.Sprintf("partition %d has digest %x on %s, %x on %s, at equal offsets", p, a, owners[0], b, other))
			}
			compared++
		}
	}
	return compared
}

// applied is where a store would go on reading; one that has nothing of a
// stream begins where the stream does.
func applied(s *store.Store, p millrace.Partition) [kafka.Streams]int64 {
	at := s.Applied(p)
	return [kafka.Streams]int64{max(0, int64(at.Content)), max(0, int64(at.Features))}
}
