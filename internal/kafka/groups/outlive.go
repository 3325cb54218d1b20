package groups

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/patience"
)

// outlives is the age at which a cut ends an open transaction, since its partitioner is
// frozen, dead or slow. A partitioner that is alive loses this much work, and tries again
// with smaller transactions (see partitioner/DESIGN.md), so that even one cut after the
// other does not stop it.
const outlives = 2 * time.Second

// openTransaction is a transaction that has not ended. It is known by its transactional id
// (name), or only by the partition in which it is open (place).
type openTransaction struct {
	name     string
	place    topicPartition
	producer int64
	start    int64 // with a name, when it began in ms by the coordinator's clock; else the offset
}

// watch ends transactions of partitioners that have been open for too long. It is called
// every watchEvery while there is no cut.
func (k *cutter) watch(ctx context.Context) error {
	now := time.Now()
	seen := map[openTransaction]time.Time{}
	old := func(t openTransaction) bool {
		since, ok := k.open[t]
		if !ok {
			since = now
		}
		seen[t] = since
		return now.Sub(since) >= outlives
	}
	if err := k.endOngoing(ctx, old); err != nil {
		return err
	}
	err := k.endHanging(ctx, old)
	k.open = seen
	return err
}

// endOngoing aborts old transactions that Kafka's transaction coordinator lists as ongoing,
// by taking over their transactional ids.
func (k *cutter) endOngoing(ctx context.Context, old func(openTransaction) bool) error {
	listed, err := k.adm.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		return fmt.Errorf("kafka: list open transactions: %w", err)
	}
	var names []string
	for name := range listed {
		if k.ours(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	all, err := k.adm.DescribeTransactions(ctx, names...)
	if err != nil {
		return fmt.Errorf("kafka: describe open transactions: %w", err)
	}
	for _, t := range all {
		if t.Err != nil || t.State != "Ongoing" || !old(openTransaction{name: t.TxnID, producer: t.ProducerID, start: t.StartTimestamp}) {
			continue
		}
		if err := k.fence(ctx, t.TxnID); err != nil {
			return fmt.Errorf("kafka: end transaction %s: %w", t.TxnID, err)
		}
		k.warn("a partitioner's transaction that outlived a hold was aborted; its records come again", "transaction", t.TxnID)
	}
	return nil
}

// ours reports whether a transactional id is of a known group of partitioners.
func (k *cutter) ours(name string) bool {
	for _, g := range k.progress.Groups() {
		if strings.HasPrefix(name, g.Group+"/") {
			return true
		}
	}
	return false
}

// fence takes over a transactional id, which aborts its transaction. If its process is
// alive, it opens a new session, which takes the id back; the process still has its place
// in the group.
func (k *cutter) fence(ctx context.Context, name string) error {
	for {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis = &name, int32(kafka.TransactionTimeout.Milliseconds())
		req.ProducerID, req.ProducerEpoch = -1, -1
		resp, err := req.RequestWith(ctx, k.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err == nil || !kerr.IsRetriable(err) && err != kerr.ConcurrentTransactions || ctx.Err() != nil {
			return err
		}
		patience.Sleep(ctx, lookAgain)
	}
}

// endHanging ends old transactions that Kafka left hanging (see hanging.go). It ends a
// transaction only if it was open in a partition before the coordinator said that it is
// complete, and is still open after that. So it cannot be a later transaction of a process
// that is alive.
func (k *cutter) endHanging(ctx context.Context, old func(openTransaction) bool) error {
	h := hanging{adm: k.adm, topics: append([]string{offsetsTopic}, k.streams[:]...), log: k.cfg.Log}
	place := func(p kadm.DescribedProducer) openTransaction {
		return openTransaction{place: topicPartition{p.Topic, p.Partition}, producer: p.ProducerID, start: p.CurrentTxnStartOffset}
	}
	open, err := h.open(ctx)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	suspects := map[openTransaction]bool{}
	for _, p := range open {
		if t := place(p); old(t) {
			suspects[t] = true
		}
	}
	if len(suspects) == 0 {
		return nil
	}
	complete, err := k.complete(ctx, suspects)
	if err != nil {
		return err
	}
	if open, err = h.open(ctx); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	for _, p := range open {
		commit, ok := complete[p.ProducerID]
		if ok && suspects[place(p)] {
			if err := h.mark(ctx, p, commit); err != nil {
				return fmt.Errorf("kafka: %w", err)
			}
		}
	}
	return nil
}

// complete returns, for each suspect's producer that is a partitioner and whose last
// transaction is complete, whether that transaction was committed. It returns an error if a
// suspect in one of the two streams is not a partitioner's: an operator has to end that one.
func (k *cutter) complete(ctx context.Context, suspects map[openTransaction]bool) (map[int64]bool, error) {
	var producers []int64
	for t := range suspects {
		producers = append(producers, t.producer)
	}
	listed, err := k.adm.ListTransactions(ctx, producers, nil)
	if err != nil {
		return nil, fmt.Errorf("kafka: list transactions: %w", err)
	}
	out, ours := map[int64]bool{}, map[int64]bool{}
	for name, t := range listed {
		if !k.ours(name) {
			continue
		}
		ours[t.ProducerID] = true
		switch t.State {
		case "CompleteCommit":
			out[t.ProducerID] = true
		case "CompleteAbort", "Empty":
			out[t.ProducerID] = false
		}
	}
	for t := range suspects {
		if !ours[t.producer] && t.place.topic != offsetsTopic {
			return nil, fmt.Errorf("kafka: a transaction in %s/%d at %d, of producer %d, is not a partitioner's and does not end; "+
				"end its producer, or abort it with kafka-transactions.sh", t.place.topic, t.place.partition, t.start, t.producer)
		}
	}
	return out, nil
}

func (k *cutter) warn(msg string, args ...any) {
	if k.cfg.Log != nil {
		k.cfg.Log.Warn("kafka: "+msg, args...)
	}
}
