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

// A transaction that Kafka's coordinator has ended, and whose end is not in
// every partition that it wrote to, hangs there: readers never get past it, and
// the next transaction under its name ends it as it ends itself. Kafka leaves
// such ones behind when it is killed and starts: the coordinator skips the
// partitions whose leaders it does not know yet (seen on 4.3.1). A group's
// offsets are in such a partition, too, and are then not to be had.
//
// So who takes a transactional id over ends what hangs of it: as the
// coordinator decided, which it still tells then, and before and after the id
// is taken over, which ends an ongoing transaction and forgets the decision.

// offsetsTopic is where Kafka keeps what groups have committed.
const offsetsTopic = "__consumer_offsets"

// succeed takes the transactional id over from whoever had it before.
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

// endAsDecided ends what hangs of the last transaction, if that has ended. Whoever had
// the id may live and begin the next one meanwhile, which is then open and does not
// hang: so nothing was begun between two looks at what has ended, and what is open
// was open before the second.
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

// decided returns what became of the last transaction under a transactional
// id, once that is decided; an ongoing one is for the successor to abort. A
// coordinator that is not there yet is waited for.
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
			return kadm.DescribedTransaction{}, nil // the first of its name
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
	name   string // the transactional id, of who succeeds to one
	topics []string
	log    *slog.Logger // nil = silent
}

// end writes the end of transactions, none of which may be ongoing.
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
