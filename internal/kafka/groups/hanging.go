package groups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/kafka/patience"
)

// A transaction hangs in a partition if Kafka's transaction coordinator has ended it, but
// its end is not in that partition. Readers never get past it there. The next transaction
// under its transactional id ends it there too, and as that one ends: committed or aborted,
// whatever the decision was. Kafka leaves such transactions behind when it is killed and
// starts again: the coordinator skips partitions whose leaders it does not know yet (seen
// on 4.3.1). The partition of a group's offsets may be among them; then the offsets cannot
// be read.
//
// So a process that takes over a transactional id ends what hangs of it. It does so twice.
// Before it takes over the id, it ends what hangs as the coordinator decided, which the
// coordinator still knows then. Taking over the id aborts an ongoing transaction and makes
// the coordinator forget the decision. After that it aborts what is open.

// offsetsTopic is where Kafka keeps what groups have committed.
const offsetsTopic = "__consumer_offsets"

// succeed takes over the transactional id from a process that had it before, if any.
func (s *Session) succeed(ctx context.Context, cfg SessionConfig) error {
	adm := kadm.NewClient(s.s.Client())
	h := hanging{adm: adm, name: cfg.Group + "/" + cfg.Instance, topics: append([]string{offsetsTopic}, cfg.Outputs...), log: cfg.Log}
	if err := h.endAsDecided(ctx); err != nil {
		return err
	}
	id, _, err := s.s.Client().ProducerID(ctx)
	if err != nil {
		return err
	}
	left, err := h.openOf(ctx, id)
	if err != nil {
		return err
	}
	return h.end(ctx, left, false)
}

// endAsDecided ends what hangs of the last transaction, if that has ended. The process that
// had the id may still live and begin another transaction meanwhile, which is open and does
// not hang. So endAsDecided asks for the last decision twice, and goes on only if it is the
// same: no transaction was decided in between. It ends only what was open before the second
// question and still is.
func (h hanging) endAsDecided(ctx context.Context) error {
	for {
		last, err := decided(ctx, h.adm, h.name)
		if err != nil || last.State != "CompleteCommit" && last.State != "CompleteAbort" {
			return err
		}
		before, err := h.openOf(ctx, last.ProducerID)
		if err != nil || len(before) == 0 {
			return err
		}
		again, err := decided(ctx, h.adm, h.name)
		if err != nil {
			return err
		}
		if again.State != last.State || again.ProducerID != last.ProducerID || again.ProducerEpoch != last.ProducerEpoch {
			continue
		}
		after, err := h.openOf(ctx, last.ProducerID)
		if err != nil {
			return err
		}
		return h.end(ctx, slices.DeleteFunc(after, func(p kadm.DescribedProducer) bool {
			return !slices.ContainsFunc(before, func(b kadm.DescribedProducer) bool {
				return b.Topic == p.Topic && b.Partition == p.Partition && b.CurrentTxnStartOffset == p.CurrentTxnStartOffset
			})
		}), last.State == "CompleteCommit")
	}
}

// decided returns what became of the last transaction under a transactional id; the zero
// value if there was none. It waits while the end of a transaction is being written, and up
// to TryTimeout for a coordinator that is not there yet. An ongoing transaction is returned
// as such.
func decided(ctx context.Context, adm *kadm.Client, name string) (t kadm.DescribedTransaction, err error) {
	for until := time.Now().Add(patience.TryTimeout); ; {
		all, err := adm.DescribeTransactions(ctx, name)
		if err == nil {
			t, err = all.On(name, nil)
		}
		if err == nil {
			err = t.Err
		}
		if errors.Is(err, kerr.TransactionalIDNotFound) {
			return kadm.DescribedTransaction{}, nil // the id has had no transaction
		}
		if err != nil && (!kerr.IsRetriable(err) || time.Now().After(until)) {
			return t, fmt.Errorf("describe transaction %s: %w", name, err)
		}
		if err == nil && t.State != "PrepareCommit" && t.State != "PrepareAbort" {
			return t, nil
		}
		patience.Sleep(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return t, ctx.Err()
		}
	}
}

// hanging ends transactions that hang in topics.
type hanging struct {
	adm    *kadm.Client
	name   string // the transactional id that a session takes over; "" for a cut
	topics []string
	log    *slog.Logger // nil = silent
}

// end writes the end of transactions, each to its partition. None of them may be ongoing.
func (h hanging) end(ctx context.Context, all []kadm.DescribedProducer, commit bool) error {
	for _, p := range all {
		if err := h.mark(ctx, p, commit); err != nil {
			return err
		}
	}
	return nil
}

// openOf returns the transactions of a producer that are open in the topics.
func (h hanging) openOf(ctx context.Context, producer int64) ([]kadm.DescribedProducer, error) {
	open, err := h.open(ctx)
	return slices.DeleteFunc(open, func(p kadm.DescribedProducer) bool { return p.ProducerID != producer }), err
}

// open returns the transactions that are open in the topics.
func (h hanging) open(ctx context.Context) (open []kadm.DescribedProducer, err error) {
	var there kadm.TopicsSet
	meta, err := h.adm.Metadata(ctx, h.topics...)
	if err != nil {
		return nil, err
	}
	for name, t := range meta.Topics {
		if t.Err == nil {
			there.Add(name, t.Partitions.Numbers()...)
		}
	}
	if len(there) == 0 {
		return nil, nil
	}
	all, err := h.adm.DescribeProducers(ctx, there)
	if err != nil {
		return nil, fmt.Errorf("look for hanging transactions: %w", err)
	}
	all.EachProducer(func(p kadm.DescribedProducer) {
		if p.CurrentTxnStartOffset >= 0 {
			open = append(open, p)
		}
	})
	return open, nil
}

// mark writes the end of one transaction to one partition.
func (h hanging) mark(ctx context.Context, p kadm.DescribedProducer, commit bool) error {
	m := kadm.TxnMarkers{ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, Commit: commit, CoordinatorEpoch: max(p.CoordinatorEpoch, 0)}
	m.Topics.Add(p.Topic, p.Partition)
	if h.log != nil {
		h.log.Warn("kafka: a transaction that Kafka left hanging is ended as it was decided", "topic", p.Topic, "partition", p.Partition, "offset", p.CurrentTxnStartOffset, "commit", commit)
	}
	done, err := h.adm.WriteTxnMarkers(ctx, m)
	if err != nil {
		return fmt.Errorf("end a hanging transaction: %w", err)
	}
	for _, topics := range done {
		for _, t := range topics.Topics {
			for _, p := range t.Partitions {
				if p.Err != nil {
					return fmt.Errorf("end a hanging transaction in %s/%d: %w", p.Topic, p.Partition, p.Err)
				}
			}
		}
	}
	return nil
}
