package indexnode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/digest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/rpcerr"
)

// Digests implements nodev1.NodeServiceServer.
func (n *Node) Digests(_ context.Context, req *nodev1.DigestsRequest) (*nodev1.DigestsResponse, error) {
	if len(req.Partitions) > partition.Count {
		return nil, rpcerr.Status(millrace.Invalid("partitions", fmt.Sprintf("%d partitions, more than there are", len(req.Partitions)), "name each once, or none for all"))
	}
	var of []millrace.Partition
	for _, i := range req.Partitions {
		p, err := partitionOf(i)
		if err != nil {
			return nil, rpcerr.Status(err)
		}
		of = append(of, p)
	}
	if len(of) == 0 {
		of = slices.Collect(partition.All())
	}
	resp := &nodev1.DigestsResponse{}
	for _, p := range of {
		if r := n.replicas.Of(p); r.State() != replica.Absent {
			resp.Trails = append(resp.Trails, trail(p, r))
		}
	}
	return resp, nil
}

func partitionOf(i int32) (millrace.Partition, error) {
	if i < 0 || i >= partition.Count {
		return 0, millrace.Invalid("partition", fmt.Sprintf("there is no partition %d", i), fmt.Sprintf("name one from 0 to %d", partition.Count-1))
	}
	return millrace.Partition(i), nil
}

func streamOf(i int32) (kafka.Stream, error) {
	if i != int32(kafka.Timeline) && i != int32(kafka.Features) {
		return 0, millrace.Invalid("stream", fmt.Sprintf("there is no stream %d", i), "0 is the records, 1 the features")
	}
	return kafka.Stream(i), nil
}

// trail returns the digests that a replica had at offsets of both streams.
func trail(p millrace.Partition, r *replica.Replica) *nodev1.Trail {
	t := &nodev1.Trail{Partition: int32(p), Answers: r.State().Answers(), Log: r.Log()}
	all := r.Trail()
	for _, x := range all[kafka.Timeline] {
		t.ContentAt, t.Content = append(t.ContentAt, int64(x.At)), append(t.Content, x.Digest)
	}
	for _, x := range all[kafka.Features] {
		t.FeaturesAt, t.Features = append(t.FeaturesAt, int64(x.At)), append(t.Features, x.Digest)
	}
	return t
}

const (
	// maxWholeTime bounds a read of a whole partition. Until it ends the store cannot
	// reclaim the space of rows that were replaced meanwhile.
	maxWholeTime = 10 * time.Minute
	// maxWholeReads is how many calls of ReadPartition the node serves at a time. Each
	// takes a place.
	maxWholeReads = 8
	// beginWithin bounds how long a caller may take to say what it reads, since another
	// caller may need its place.
	beginWithin = 10 * time.Second
	// takeWithin bounds how long a message may wait for its caller to take it. It counts
	// only while all places are taken: a caller that prints may be slow, since a person
	// reads along.
	takeWithin = 30 * time.Second
)

// ReadPartition implements nodev1.NodeServiceServer.
func (n *Node) ReadPartition(stream nodev1.NodeService_ReadPartitionServer) error {
	return n.inPlace(stream, n.readPartition)
}

// watched is a stream that knows for how long the message in Send has been waiting for
// its caller to take it.
type watched struct {
	nodev1.NodeService_ReadPartitionServer
	began time.Time
	since atomic.Int64 // after began, in nanoseconds; 0: none waits
}

func (w *watched) Send(m *nodev1.ReadPartitionResponse) error {
	w.since.Store(max(1, int64(time.Since(w.began))))
	defer w.since.Store(0)
	return w.NodeService_ReadPartitionServer.Send(m)
}

// waits returns for how long the present Send has been waiting; 0 if there is none.
func (w *watched) waits() time.Duration {
	if since := w.since.Load(); since != 0 {
		return time.Since(w.began) - time.Duration(since)
	}
	return 0
}

// inPlace calls read in one of the places of ReadPartition. read closes the channel once
// its caller has said what it reads. inPlace refuses the call if all places are taken, and
// ends it if the caller does not say that within beginWithin, or takes no message within
// takeWithin while all places are taken.
func (n *Node) inPlace(stream nodev1.NodeService_ReadPartitionServer, read func(context.Context, nodev1.NodeService_ReadPartitionServer, chan<- struct{}) error) error {
	select {
	case n.wholeReads <- struct{}{}:
	default:
		return rpcerr.Status(&millrace.Error{
			Reason: millrace.ReasonOverloaded, Field: "partition", Detail: fmt.Sprintf("%d callers read partitions of this node already", maxWholeReads), WayOut: "wait until one has ended",
		})
	}
	ctx, cancel := n.whileRunning(stream.Context())
	defer cancel()
	to := &watched{NodeService_ReadPartitionServer: stream, began: time.Now()}
	done, begun := make(chan error, 1), make(chan struct{})
	go func() { // a caller that neither reads nor writes must not keep the node from stopping
		defer func() { <-n.wholeReads }()
		done <- read(ctx, to, begun)
	}()
	late := time.NewTimer(beginWithin)
	defer late.Stop()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select { // when this returns, gRPC ends the calls of the stream that read waits in
		case <-look.C:
			if len(n.wholeReads) == maxWholeReads && to.waits() >= takeWithin {
				return rpcerr.Status(&millrace.Error{
					Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("what is read waited for more than %s to be taken, and others want the place", takeWithin), WayOut: "write it into a file",
				})
			}
		case err := <-done:
			return rpcerr.Status(err)
		case <-begun:
			late.Stop()
			begun = nil
		case <-late.C:
			return rpcerr.Status(&millrace.Error{
				Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("what is to be read was not agreed upon within %s", beginWithin), WayOut: "name the partition, and then the offsets, without a pause",
			})
		case <-ctx.Done():
			return rpcerr.Status(ctx.Err())
		}
	}
}

// whileRunning returns ctx with a timeout of maxWholeTime, which also ends when the node
// stops. It is for calls that read a whole partition, or much for an operator: a node that
// stops does not wait for them.
func (n *Node) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, maxWholeTime)
	run := n.running.Load()
	if run == nil {
		return ctx, cancel
	}
	stop := context.AfterFunc(*run, cancel)
	if (*run).Err() != nil { // AfterFunc calls cancel from another goroutine, perhaps later
		cancel()
	}
	return ctx, func() {
		stop()
		cancel()
	}
}

func (n *Node) readPartition(ctx context.Context, stream nodev1.NodeService_ReadPartitionServer, begun chan<- struct{}) error {
	c, err := n.contentsFor(ctx, stream)
	if err != nil {
		return err
	}
	close(begun)
	return errors.Join(sendRows(ctx, c, stream), c.Close())
}

// contentsFor reads from the stream which partition and offsets the caller wants. It stops
// the replica at these offsets, takes a snapshot of what it holds there, and lets it go on.
// It has sent the offsets and digests of the snapshot when it returns; the caller closes
// it.
func (n *Node) contentsFor(ctx context.Context, stream nodev1.NodeService_ReadPartitionServer) (*store.Contents, error) {
	req, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	p, err := partitionOf(req.Partition)
	if err != nil {
		return nil, err
	}
	st, err := n.replicas.Stop(ctx, p)
	if err != nil {
		return nil, err
	}
	defer st.Release()
	if err := stream.Send(&nodev1.ReadPartitionResponse{At: offsets(st.At()), Log: n.replicas.Of(p).Log()}); err != nil {
		return nil, err
	}
	if req, err = stream.Recv(); err != nil {
		return nil, err
	}
	to := [2]millrace.Offset{millrace.Offset(req.To.GetContent()), millrace.Offset(req.To.GetFeatures())}
	if err := st.Move(to); err != nil {
		return nil, err
	}
	c, err := st.Contents()
	if err != nil {
		return nil, err
	}
	d := c.Digest()
	if err := stream.Send(&nodev1.ReadPartitionResponse{At: offsets(to), Content: d.Content, Features: d.Features}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func offsets(at [2]millrace.Offset) *nodev1.Offsets {
	return &nodev1.Offsets{Content: int64(at[kafka.Timeline]), Features: int64(at[kafka.Features])}
}

// sentRows is how many rows a message holds.
const sentRows = 500

func sendRows(ctx context.Context, c *store.Contents, stream nodev1.NodeService_ReadPartitionServer) error {
	resp := &nodev1.ReadPartitionResponse{}
	for row, err := range c.Rows() {
		if err != nil {
			return err
		}
		resp.Rows = append(resp.Rows, &nodev1.Row{
			Key: row.Key, Entity: string(row.Timeline.Entity), Type: string(row.Timeline.Type), Id: string(row.ID), TimeMs: int64(row.Time),
			Version: row.Version, Deleted: row.Deleted, Schema: uint64(row.Schema), Sum: row.Sum,
		})
		if len(resp.Rows) < sentRows {
			continue
		}
		if err := errors.Join(ctx.Err(), stream.Send(resp)); err != nil {
			return err
		}
		resp = &nodev1.ReadPartitionResponse{}
	}
	if len(resp.Rows) > 0 {
		return stream.Send(resp)
	}
	return nil
}

// CheckPartition implements nodev1.NodeServiceServer.
func (n *Node) CheckPartition(ctx context.Context, req *nodev1.CheckPartitionRequest) (*nodev1.CheckPartitionResponse, error) {
	p, err := partitionOf(req.Partition)
	if err == nil && n.replicas.Of(p).State() == replica.Absent {
		err = millrace.Invalid("partition", fmt.Sprintf("partition %d is not on this node", p), "millrace cluster show says where it is")
	}
	ctx, cancel := n.whileRunning(ctx)
	defer cancel()
	if err == nil {
		err = n.examination(ctx)
	}
	if err != nil {
		return nil, rpcerr.Status(err)
	}
	defer n.examined()
	report, err := n.store.Check(ctx, p)
	resp := &nodev1.CheckPartitionResponse{Timelines: int64(report.Timelines), Records: int64(report.Records), Features: int64(report.Features)}
	if errors.Is(err, store.ErrCorrupt) {
		if n.store.Quarantined(p) == nil { // the fault was in data that has been replaced meanwhile
			return nil, rpcerr.Status(&millrace.Error{
				Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("partition %d was made anew while it was read", p), WayOut: "check it again",
			})
		}
		if bad := n.cfg.Audit.Write(n.act(ctx, "check", p, replica.Quarantined.String()+" made anew: "+err.Error())); bad != nil {
			return nil, rpcerr.Status(bad)
		}
		n.replicas.CondemnDamaged(p)
		resp.Fault, err = err.Error(), nil
	}
	return resp, rpcerr.Status(err)
}

// examination waits until no other partition is checked, counted or made anew for a
// witness, since each of these takes memory and the disk. ReadPartition does not wait for
// it. Call examined in the end, unless the error, that of ctx, is not nil.
func (n *Node) examination(ctx context.Context) error {
	select {
	case n.examining <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *Node) examined() { <-n.examining }

// WitnessPartition implements nodev1.NodeServiceServer.
func (n *Node) WitnessPartition(ctx context.Context, req *nodev1.WitnessPartitionRequest) (*nodev1.WitnessPartitionResponse, error) {
	resp, err := n.witness(ctx, req)
	return resp, rpcerr.Status(err)
}

func (n *Node) witness(ctx context.Context, req *nodev1.WitnessPartitionRequest) (*nodev1.WitnessPartitionResponse, error) {
	p, err := partitionOf(req.Partition)
	if err != nil {
		return nil, err
	}
	s, err := streamOf(req.Stream)
	if err != nil {
		return nil, err
	}
	ctx, cancel := n.whileRunning(ctx)
	defer cancel()
	if err := n.examination(ctx); err != nil {
		return nil, err
	}
	defer n.examined()
	cfg := backups.WitnessConfig{
		Brokers: n.cfg.Brokers, Topics: n.cfg.Topics, Retention: n.cfg.Store.Retention, Scratch: n.witnesses(), Log: n.log,
		Partition: p, Stream: s, Of: n.replicas.Of(p).Log(), Past: n.replicas.Of(p).HasPast(), Offset: millrace.Offset(req.Offset),
		// A backup that ends where all replicas were still equal is right whoever made it. A
		// later one must not be of a node whose replica is in doubt.
		Trusts: func(m *backup.Manifest) bool {
			at := m.Applied.Content
			if s == kafka.Features {
				at = m.Applied.Features
			}
			return at <= millrace.Offset(req.Agreed) || m.Node != "" && !slices.Contains(req.Nodes, string(m.Node))
		},
	}
	if k := n.keeper.Load(); k != nil {
		cfg.Bucket = k.Bucket
	}
	sum, source, err := backups.Witness(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &nodev1.WitnessPartitionResponse{Digest: sum, Source: source}, nil
}

// witnesses is the directory of partitions that are made anew for WitnessPartition, to
// compare replicas with.
func (n *Node) witnesses() string { return filepath.Join(n.cfg.Dir, "witness") }

// CondemnPartition implements nodev1.NodeServiceServer.
func (n *Node) CondemnPartition(ctx context.Context, req *nodev1.CondemnPartitionRequest) (*nodev1.CondemnPartitionResponse, error) {
	resp, err := n.condemn(ctx, req)
	return resp, rpcerr.Status(err)
}

// condemn quarantines a replica that differs from the other ones, so that it is made anew.
// It refuses to if no other node serves the partition. It first writes to disk what
// differs, and goes on if that fails.
func (n *Node) condemn(ctx context.Context, req *nodev1.CondemnPartitionRequest) (*nodev1.CondemnPartitionResponse, error) {
	p, err := partitionOf(req.Partition)
	if err != nil {
		return nil, err
	}
	s, err := streamOf(req.Stream)
	if err != nil {
		return nil, err
	}
	if !n.servedElsewhere(p) {
		return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("no other node serves partition %d, so this replica stays, whatever it differs in", p), WayOut: "bring another replica back first: millrace cluster show"}
	}
	v := &replica.Verdict{
		Stream: s, At: replica.Pass{At: millrace.Offset(req.Offset), Digest: req.Digest}, Expected: req.Expected,
		Agreed: millrace.Offset(req.Agreed), Peer: millrace.NodeID(req.Peer),
	}
	if err := n.replicas.Of(p).Fits(v); err != nil {
		return nil, err
	}
	act := n.act(ctx, "condemn", p, fmt.Sprintf("%s made anew: at %d its digest of %s is %x, and should be %x as on %s", replica.Quarantined, req.Offset, s, req.Digest, req.Expected, req.Peer))
	if err := n.cfg.Audit.Write(act); err != nil {
		return nil, err
	}
	resp := &nodev1.CondemnPartitionResponse{}
	if resp.Kept, err = n.keepDifference(ctx, p, req); err != nil {
		resp.NotKept = err.Error()
		n.log.Warn("what differs is not kept", "partition", p, "peer", req.Peer, "err", err)
	}
	if err := n.replicas.CondemnDiffering(p, v); err != nil {
		act.After, act.Fault = act.Before, err.Error()
		return resp, errors.Join(err, n.cfg.Audit.Write(act))
	}
	return resp, nil
}

// servedElsewhere reports whether another node that is alive says that it serves a
// partition. It also returns true while this node has no map of the cluster.
func (n *Node) servedElsewhere(p millrace.Partition) bool {
	maps := n.maps.Load()
	if maps == nil {
		return true
	}
	m := (*maps)()
	return slices.ContainsFunc(m.Replicas(p), func(id millrace.NodeID) bool {
		ready := m.Ready(id)
		return id != n.cfg.ID && m.Alive(id) && ready.Has(p)
	})
}

// act returns an entry for the audit log: what somebody has the node do to a partition.
func (n *Node) act(ctx context.Context, what string, p millrace.Partition, after string) audit.Entry {
	return audit.Entry{
		Who: cmp.Or(permit.Who(ctx).Name, "anybody"), Act: what, On: fmt.Sprintf("partition %d of %s", p, n.cfg.ID),
		Before: n.replicas.Of(p).State().String(), After: after,
	}
}

const (
	// keepFor bounds the writing of what differs: until it ends, a replica that is wrong
	// goes on answering.
	keepFor = 10 * time.Second
	// keptDeltas bounds the differences in a file, and keptFiles the files in the
	// directory.
	keptDeltas = 10_000
	keptFiles  = 16
)

// keepDifference writes into the data directory in what a replica differs from that of
// req.Peer, and returns the name of the file. Its first line is the request, and each
// further line a difference, all as JSON.
func (n *Node) keepDifference(ctx context.Context, p millrace.Partition, req *nodev1.CondemnPartitionRequest) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, keepFor)
	defer cancel()
	own, _ := n.addr.Load().(string)
	var sides [2]digest.Side
	for i, at := range []struct{ id, addr string }{{string(n.cfg.ID), own}, {req.Peer, req.PeerAddr}} {
		conn, err := grpc.NewClient(at.addr, n.peers()...)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		sides[i] = digest.Side{Node: millrace.NodeID(at.id), Client: nodev1.NewNodeServiceClient(conn)}
	}
	d, err := digest.Open(ctx, p, sides)
	if err != nil {
		return "", err
	}
	defer d.Close()
	dir := filepath.Join(n.cfg.Dir, "differs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	name = filepath.Join(dir, fmt.Sprintf("%s-%03d.ndjson", time.Now().UTC().Format("20060102T150405.000"), p))
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	if err := errors.Join(writeDifference(f, req, d), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(name))
	}
	return name, keepNewest(dir)
}

func writeDifference(f *os.File, req *nodev1.CondemnPartitionRequest, d *digest.Diff) error {
	out := json.NewEncoder(f)
	err := out.Encode(struct {
		Order *nodev1.CondemnPartitionRequest `json:"order"`
		At    *nodev1.Offsets                 `json:"at"`
	}{req, d.At})
	kept := 0
	for delta, bad := range d.All() {
		if err = errors.Join(err, bad); err != nil {
			return err
		}
		if kept++; kept > keptDeltas {
			return out.Encode("there is more")
		}
		err = out.Encode(delta)
	}
	return err
}

// keepNewest removes the oldest files of a directory beyond keptFiles. Their
// names begin with their time.
func keepNewest(dir string) error {
	all, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for i := range max(0, len(all)-keptFiles) {
		err = errors.Join(err, os.Remove(filepath.Join(dir, all[i].Name())))
	}
	return err
}
