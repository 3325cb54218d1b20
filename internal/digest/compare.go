// Package digest compares the replicas of partitions, finds those that do not have what their
// log says, and has them made anew.
//
// No replica leads the others, and a replica that is wrong does not know it. One of two
// replicas is wrong if they have had different digests at the same offset of the same log. A
// digest is a checksum of all that a replica has of a stream (content or features). If more
// than half of the replicas have one digest, the others are wrong. Otherwise, as with two
// replicas, a node makes the stream anew from the log, or from a backup that all agree with,
// and the digest of that decides. If that is not possible, no replica is taken out of service,
// and a person decides.
package digest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// Dial returns a client of a node. The caller that provides the function closes the
// connections.
type Dial func(topology.Node) (nodev1.NodeServiceClient, error)

// Difference is a partition whose replicas differ in one stream.
type Difference struct {
	Partition millrace.Partition
	Stream    kafka.Stream
	Offset    millrace.Offset            // the offset at which they are compared: see judge
	Digests   map[millrace.NodeID]uint64 // the digests at Offset, of the replicas that have passed it
	// Wrong are the nodes whose digest is not the right one, and Right is one node that has
	// it. Both are empty if it is not known which digest is right.
	Wrong []millrace.NodeID
	Right millrace.NodeID
	// Agreed is the newest known offset before Offset at which all these nodes had the same
	// digest; -1: none is known.
	Agreed millrace.Offset
	// Witness says what the stream was made anew from, if that decided; "": it was not.
	Witness string
}

// String says for people which nodes differ.
func (d *Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "partition %d: at %d of %s", d.Partition, d.Offset, d.Stream)
	for _, id := range d.nodes() {
		fmt.Fprintf(&b, " %s has %x", id, d.Digests[id])
	}
	switch {
	case len(d.Wrong) == 0:
		b.WriteString("; which is wrong is not known")
	default:
		fmt.Fprintf(&b, "; wrong: %v", d.Wrong)
	}
	if d.Witness != "" {
		fmt.Fprintf(&b, ", by %s", d.Witness)
	}
	return b.String()
}

// nodes returns the nodes of Digests, sorted.
func (d *Difference) nodes() []millrace.NodeID {
	var all []millrace.NodeID
	for id := range d.Digests {
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}

// Trail is some offsets that the replica of a node has passed, and its digests there.
type Trail struct {
	Node millrace.NodeID
	*nodev1.Trail
}

// Compare asks all nodes that are alive, backup nodes too, for the digests of their replicas,
// and returns the partitions whose replicas differ. The error names the nodes that do not
// answer. Their partitions are in unseen, and the replicas of the other nodes are compared all
// the same.
func Compare(ctx context.Context, m *topology.Map, dial Dial) (all []Difference, unseen topology.Set, err error) {
	trails, mute, err := ask(ctx, m, dial)
	for _, n := range mute {
		unseen = unseen.Or(m.Hosted(n.ID))
		if keeps, err := topology.ParseSet(n.Keeps); n.Keeps != "" && err == nil {
			unseen = unseen.Or(keeps)
		}
	}
	for p := range partition.All() {
		all = append(all, Judge(p, trails[p])...)
	}
	return all, unseen, err
}

// Trails asks all nodes that are alive for the digests of their replicas, of the partitions in
// of, or of all if it is empty. The trails of a partition are in the order of nodes. The error
// names the nodes that do not answer, and may come with the trails of the others.
func Trails(ctx context.Context, m *topology.Map, dial Dial, of ...millrace.Partition) (map[millrace.Partition][]Trail, error) {
	all, _, err := ask(ctx, m, dial, of...)
	return all, err
}

// ask does what Trails does, and also returns the nodes that do not answer, as mute.
func ask(ctx context.Context, m *topology.Map, dial Dial, of ...millrace.Partition) (all map[millrace.Partition][]Trail, mute []topology.Node, err error) {
	req := &nodev1.DigestsRequest{}
	for _, p := range of {
		req.Partitions = append(req.Partitions, int32(p))
	}
	all = map[millrace.Partition][]Trail{}
	var mu sync.Mutex // of all, mute and errs
	var errs []error
	var asked sync.WaitGroup
	for _, n := range m.Nodes() {
		if !m.Alive(n.ID) {
			continue
		}
		c, err := dial(n)
		asked.Go(func() {
			var resp *nodev1.DigestsResponse
			if err == nil {
				resp, err = c.Digests(ctx, req)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				mute, errs = append(mute, n), append(errs, fmt.Errorf("digests of %s: %w", n.ID, err))
			}
			for _, t := range resp.GetTrails() {
				if t.Answers && t.Partition >= 0 && t.Partition < partition.Count {
					p := millrace.Partition(t.Partition)
					all[p] = append(all[p], Trail{n.ID, t})
				}
			}
		})
	}
	asked.Wait()
	for _, trails := range all {
		slices.SortFunc(trails, func(a, b Trail) int { return cmp.Compare(a.Node, b.Node) })
	}
	return all, mute, errors.Join(errs...)
}

// stream returns the offsets of a stream that the replica passed, ascending, and its digests
// there.
func (t Trail) stream(s kafka.Stream) ([]int64, []uint64) {
	at, digests := t.ContentAt, t.Content
	if s == kafka.Features {
		at, digests = t.FeaturesAt, t.Features
	}
	n := min(len(at), len(digests))
	return at[:n], digests[:n]
}

// Judge returns the streams in which the replicas of a partition differ. Replicas of different
// logs are not compared.
func Judge(p millrace.Partition, trails []Trail) (all []Difference) {
	byLog := map[string][]Trail{}
	for _, t := range trails {
		if t.Log != "" {
			byLog[t.Log] = append(byLog[t.Log], t)
		}
	}
	for _, same := range byLog {
		for s := range 2 {
			if d, differ := judge(p, kafka.Stream(s), same); differ {
				all = append(all, d)
			}
		}
	}
	return all
}

// judge compares one stream of the replicas of one log. It does so at the offset that the most
// of them have passed, or at the newest if there are several such offsets. A replica that
// differed before and is equal there counts as right: what differed has been replaced since.
func judge(p millrace.Partition, s kafka.Stream, trails []Trail) (d Difference, differ bool) {
	told := map[int64]map[millrace.NodeID]uint64{}
	for _, t := range trails {
		offsets, digests := t.stream(s)
		for i, at := range offsets {
			if told[at] == nil {
				told[at] = map[millrace.NodeID]uint64{}
			}
			told[at][t.Node] = digests[i]
		}
	}
	d = Difference{Partition: p, Stream: s, Offset: -1, Agreed: -1}
	for at, by := range told {
		if n := len(by); n > len(d.Digests) || n == len(d.Digests) && at > int64(d.Offset) {
			d.Offset, d.Digests = millrace.Offset(at), by
		}
	}
	if len(d.Digests) < 2 || len(groups(d.Digests)) < 2 {
		return d, false
	}
	for at, by := range told {
		if at > int64(d.Agreed) && at < int64(d.Offset) && len(by) == len(d.Digests) && len(groups(by)) == 1 {
			d.Agreed = millrace.Offset(at)
		}
	}
	d.vote()
	return d, true
}

// groups returns how many nodes have each digest.
func groups(by map[millrace.NodeID]uint64) map[uint64]int {
	all := map[uint64]int{}
	for _, digest := range by {
		all[digest]++
	}
	return all
}

// vote decides by the digest that more than half of the nodes have, if there is one.
func (d *Difference) vote() {
	for digest, n := range groups(d.Digests) {
		if 2*n > len(d.Digests) {
			d.decide(digest)
		}
	}
}

// decide sets Wrong and Right, where digest is the right one.
func (d *Difference) decide(digest uint64) {
	d.Wrong, d.Right = nil, ""
	for _, id := range d.nodes() {
		switch {
		case d.Digests[id] != digest:
			d.Wrong = append(d.Wrong, id)
		case d.Right == "":
			d.Right = id
		}
	}
}
