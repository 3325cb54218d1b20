package digest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Side is one of the two replicas that are read side by side.
type Side struct {
	Node   millrace.NodeID
	Client nodev1.NodeServiceClient
}

// Delta is one record of a timeline, or the features of one subject, that two replicas do not
// have alike. Sides are in the order of the replicas; nil: that replica does not have it.
type Delta struct{ Sides [2]*nodev1.Row }

// Diff reads what two replicas of a partition have at the same offsets.
type Diff struct {
	At      *nodev1.Offsets                  // the offsets
	Digests [2]*nodev1.ReadPartitionResponse // the replicas' digests there, of content and features
	sides   [2]rows
	cancel  context.CancelFunc
}

// Open begins to read two replicas. Each says how far it is; the later of the two offsets of
// each stream is where both are read. Each replica stops ingest there for a moment, and then
// sends what it has. Close is to be called in the end.
func Open(ctx context.Context, p millrace.Partition, sides [2]Side) (_ *Diff, err error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &Diff{At: &nodev1.Offsets{}, cancel: cancel}
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	logs := [2]string{}
	for i, side := range sides {
		s, err := side.Client.ReadPartition(ctx)
		if err == nil {
			err = s.Send(&nodev1.ReadPartitionRequest{Partition: int32(p)})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", side.Node, err)
		}
		d.sides[i] = rows{node: side.Node, stream: s}
	}
	for i := range d.sides {
		first, err := d.sides[i].recv()
		if err != nil {
			return nil, err
		}
		logs[i] = first.Log
		d.At.Content, d.At.Features = max(d.At.Content, first.At.GetContent()), max(d.At.Features, first.At.GetFeatures())
	}
	if logs[0] != logs[1] {
		return nil, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "partition", Detail: fmt.Sprintf("the replicas of partition %d are of different logs: %s and %s", p, logs[0], logs[1]),
			WayOut: "see to Kafka first (millrace doctor)",
		}
	}
	for i := range d.sides {
		if err := d.sides[i].stream.Send(&nodev1.ReadPartitionRequest{To: d.At}); err != nil && err != io.EOF { // after EOF, recv returns the reason
			return nil, fmt.Errorf("%s: %w", d.sides[i].node, err)
		}
	}
	for i := range d.sides {
		if d.Digests[i], err = d.sides[i].recv(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Close ends the reading.
func (d *Diff) Close() { d.cancel() }

// All yields what differs, in the order of rows. It has only a few rows in memory at a time. An
// error ends it.
func (d *Diff) All() iter.Seq2[Delta, error] {
	return func(yield func(Delta, error) bool) {
		a, b := &d.sides[0], &d.sides[1]
		for {
			x, err := a.head()
			var y *nodev1.Row
			if err == nil {
				y, err = b.head()
			}
			if err != nil {
				yield(Delta{}, err)
				return
			}
			if x == nil && y == nil {
				return
			}
			var delta Delta
			order := compare(x, y)
			if order <= 0 {
				delta.Sides[0] = x
				a.next()
			}
			if order >= 0 {
				delta.Sides[1] = y
				b.next()
			}
			if order == 0 && x.Sum == y.Sum {
				continue
			}
			if !yield(delta, nil) {
				return
			}
		}
	}
}

// compare compares two rows in the order in which replicas send them; nil comes after all.
func compare(x, y *nodev1.Row) int {
	switch {
	case x == nil && y == nil:
		return 0
	case x == nil:
		return 1
	case y == nil:
		return -1
	}
	return cmp.Or(bytes.Compare(x.Key, y.Key), orderInTimeline(x, y))
}

func orderInTimeline(x, y *nodev1.Row) int {
	if x.Type == "" { // features: one row for each key
		return 0
	}
	return cmp.Or(cmp.Compare(y.TimeMs, x.TimeMs), cmp.Compare(x.Id, y.Id))
}

// rows reads the rows of one replica, a message at a time.
type rows struct {
	node   millrace.NodeID
	stream nodev1.NodeService_ReadPartitionClient
	here   []*nodev1.Row // received and not read yet
	last   *nodev1.Row   // the last one that was read; nil: none was
	ended  bool          // the stream has ended
}

// recv returns the next message. If the stream has ended, it returns an error.
func (r *rows) recv() (*nodev1.ReadPartitionResponse, error) {
	resp, err := r.stream.Recv()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.node, err)
	}
	return resp, nil
}

// head returns the next row without taking it; nil after the last.
func (r *rows) head() (*nodev1.Row, error) {
	for len(r.here) == 0 && !r.ended {
		resp, err := r.stream.Recv()
		if err == io.EOF {
			r.ended = true
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.node, err)
		}
		r.here = resp.Rows
	}
	if len(r.here) == 0 {
		return nil, nil
	}
	row := r.here[0]
	if r.last != nil && compare(r.last, row) >= 0 {
		return nil, fmt.Errorf("%s: its rows are not in order: %q of %s after %q of %s", r.node, row.Id, row.Entity, r.last.Id, r.last.Entity)
	}
	return row, nil
}

// next takes the row that head returned.
func (r *rows) next() { r.last, r.here = r.here[0], r.here[1:] }
