package digest

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Witness has one of the nodes make the stream anew, up to the offset at which the replicas
// differ, and decides by the digest of the new stream. It asks the nodes one after the other
// until one succeeds. If none does, or no replica has that digest, it returns an error and d
// stays undecided.
func Witness(ctx context.Context, m *topology.Map, dial Dial, d *Difference) error {
	req := &nodev1.WitnessPartitionRequest{Partition: int32(d.Partition), Stream: int32(d.Stream), Offset: int64(d.Offset), Agreed: int64(d.Agreed)}
	for _, id := range d.nodes() {
		req.Nodes = append(req.Nodes, string(id))
	}
	var errs []error
	for _, id := range d.nodes() {
		resp, err := witness(ctx, m, dial, id, req)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
			continue
		}
		d.Witness = resp.Source
		d.decide(resp.Digest)
		if d.Right == "" {
			d.Wrong = nil
			return undecided(d, fmt.Sprintf("none of them is what the log makes of it: %x, from %s", resp.Digest, resp.Source))
		}
		return nil
	}
	return undecided(d, fmt.Sprintf("it could not be made anew: %v", errors.Join(errs...)))
}

func witness(ctx context.Context, m *topology.Map, dial Dial, id millrace.NodeID, req *nodev1.WitnessPartitionRequest) (*nodev1.WitnessPartitionResponse, error) {
	n, ok := m.Node(id)
	if !ok {
		return nil, errors.New("it is gone")
	}
	c, err := dial(n)
	if err != nil {
		return nil, err
	}
	return c.WitnessPartition(ctx, req)
}

func undecided(d *Difference, why string) error {
	return &millrace.Error{
		Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("%s: %s", d, why),
		WayOut: fmt.Sprintf("look at what differs (millrace partition diff %d), and have the replica that is wrong made anew: stop its node, delete its data directory, start it", d.Partition),
	}
}

// Condemn has a node take its replica, one of d.Wrong, out of service and make it anew. It
// returns an error, which says what a person has to do, if no other replica answers for the
// partition. The replica of a backup node, which answers nobody, may always go. m must be the
// cluster as it is now, not as it was before [Witness], which may take long. Nobody else may
// take replicas out of service at the same time.
func Condemn(ctx context.Context, m *topology.Map, dial Dial, d *Difference, id millrace.NodeID) error {
	n, ok := m.Node(id)
	right, rightOK := m.Node(d.Right)
	switch {
	case !ok || !rightOK:
		return errors.New("a node is gone")
	case n.Keeps == "" && !othersAnswer(m, d, id):
		return &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("partition %d has no other replica that answers", d.Partition),
			WayOut: "it stays in service until there is one; start the nodes that are gone",
		}
	}
	c, err := dial(n)
	if err != nil {
		return err
	}
	_, err = c.CondemnPartition(ctx, &nodev1.CondemnPartitionRequest{
		Partition: int32(d.Partition), Stream: int32(d.Stream), Offset: int64(d.Offset), Digest: d.Digests[id], Expected: d.Digests[d.Right],
		Agreed: int64(d.Agreed), Peer: string(d.Right), PeerAddr: right.Addr,
	})
	return err
}

// othersAnswer reports whether a node other than the node but answers for the partition, with a
// replica that is not known to be wrong.
func othersAnswer(m *topology.Map, d *Difference, but millrace.NodeID) bool {
	for _, id := range m.Replicas(d.Partition) {
		ready := m.Ready(id)
		digest, told := d.Digests[id]
		if id != but && m.Alive(id) && ready.Has(d.Partition) && (!told || digest == d.Digests[d.Right]) {
			return true
		}
	}
	return false
}
