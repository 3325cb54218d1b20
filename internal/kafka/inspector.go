package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// Inspector looks at topics and consumer groups, without reading or joining them.
type Inspector struct {
	cl  *kgo.Client
	adm *kadm.Client
}

// NewInspector returns an Inspector of a Kafka. Close it at the end.
func NewInspector(brokers Brokers) (*Inspector, error) {
	cl, err := NewClient(brokers, nil)
	if err != nil {
		return nil, err
	}
	return &Inspector{cl, kadm.NewClient(cl)}, nil
}

// Close disconnects.
func (i *Inspector) Close() { i.cl.Close() }

// Ends returns the offset after the last committed record of each partition of
// a topic.
func (i *Inspector) Ends(ctx context.Context, topic string) ([]millrace.Offset, error) {
	listed, err := i.adm.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: ends of %s: %w", topic, err)
	}
	ends := make([]millrace.Offset, len(listed[topic]))
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = millrace.Offset(o.Offset) })
	return ends, nil
}

// Extent returns where a topic ends, and where committed reads of it end.
func (i *Inspector) Extent(ctx context.Context, topic string) (Ends, error) {
	e, err := ListEnds(ctx, i.adm, topic)
	if err != nil {
		return e, fmt.Errorf("kafka: ends of %s: %w", topic, err)
	}
	return e, nil
}

// Transaction is a transaction that is open in a topic.
type Transaction struct {
	ID         string // its transactional id; empty: not known
	ProducerID int64
	Partition  int32 // the lowest of the partitions asked for in which it has entries; Offset is of its first there
	Offset     millrace.Offset
	Since      time.Time // zero: not known
}

// OldestOpen returns the transaction that has been open for the longest, of those in the
// partitions of h; nil: none is open any more. Kafka may refuse to tell its name and its
// age: then there is an error as well as a transaction.
func (i *Inspector) OldestOpen(ctx context.Context, h *Hidden) (*Transaction, error) {
	in := kadm.TopicsSet{}
	for p := range h.From {
		in.Add(h.Topic, p)
	}
	described, err := i.adm.DescribeProducers(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("kafka: who writes to %s: %w", h.Topic, err)
	}
	var errs []error
	open := map[int64]*Transaction{} // by producer
	described.EachPartition(func(p kadm.DescribedProducersPartition) { errs = append(errs, p.Err) })
	described.EachProducer(func(p kadm.DescribedProducer) {
		if was := open[p.ProducerID]; p.CurrentTxnStartOffset >= 0 && (was == nil || p.Partition < was.Partition) {
			open[p.ProducerID] = &Transaction{ProducerID: p.ProducerID, Partition: p.Partition, Offset: millrace.Offset(p.CurrentTxnStartOffset)}
		}
	})
	if len(open) == 0 {
		return nil, errors.Join(errs...)
	}
	errs = append(errs, i.name(ctx, open))
	oldest := slices.MinFunc(slices.Collect(maps.Values(open)), func(a, b *Transaction) int {
		switch {
		case a.Since.IsZero() && !b.Since.IsZero():
			return 1
		case b.Since.IsZero() && !a.Since.IsZero():
			return -1
		}
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ProducerID, b.ProducerID))
	})
	return oldest, errors.Join(errs...)
}

// name fills in the ids of the transactions, and since when they are open.
func (i *Inspector) name(ctx context.Context, open map[int64]*Transaction) error {
	listed, err := i.adm.ListTransactions(ctx, slices.Sorted(maps.Keys(open)), nil)
	if err != nil {
		return fmt.Errorf("kafka: whose transactions they are: %w", err)
	}
	if len(listed) == 0 {
		return nil
	}
	for _, t := range listed {
		if of := open[t.ProducerID]; of != nil {
			of.ID = t.TxnID
		}
	}
	described, err := i.adm.DescribeTransactions(ctx, listed.TransactionalIDs()...)
	if err != nil {
		return fmt.Errorf("kafka: since when transactions are open: %w", err)
	}
	for _, t := range described {
		if of := open[t.ProducerID]; of != nil && t.Err == nil && t.StartTimestamp > 0 {
			of.Since = time.UnixMilli(t.StartTimestamp)
		}
	}
	return nil
}

// Starts returns the oldest offset that each partition of a topic still has.
func (i *Inspector) Starts(ctx context.Context, topic string) ([]millrace.Offset, error) {
	listed, err := i.adm.ListStartOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: starts of %s: %w", topic, err)
	}
	starts := make([]millrace.Offset, len(listed[topic]))
	listed.Each(func(o kadm.ListedOffset) { starts[o.Partition] = millrace.Offset(o.Offset) })
	return starts, nil
}

// Lag returns how many records of a topic a group has yet to consume.
func (i *Inspector) Lag(ctx context.Context, group, topic string) (int64, error) {
	ends, err := i.Ends(ctx, topic)
	if err != nil {
		return 0, err
	}
	committed, err := i.adm.FetchOffsetsForTopics(ctx, group, topic)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	var lag int64
	for p, end := range ends {
		at := int64(0)
		if o, ok := committed.Lookup(topic, int32(p)); ok {
			at = max(0, o.At)
		}
		lag += max(0, int64(end)-at)
	}
	return lag, nil
}

// Consumption says which group of partitioners consumes a topic.
type Consumption struct {
	// Group consumes the topic; empty: no group does.
	Group string
	// Running says that a partitioner is running, in Group or in another group. If none is,
	// Group has only committed offsets, and may start again.
	Running bool
	// Topics are what running partitioners consume, sorted.
	Topics []string
}

// Consumption returns which group of partitioners consumes a topic. If any partitioner is
// running, only running ones count; else a group counts that has committed offsets of the
// topic.
func (i *Inspector) Consumption(ctx context.Context, topic string) (Consumption, error) {
	groups, err := i.groups(ctx)
	if err != nil {
		return Consumption{}, fmt.Errorf("kafka: who consumes %s: %w", topic, err)
	}
	var c Consumption
	for _, g := range groups.Sorted() {
		for _, m := range g.Members {
			joined, ok := m.Join.AsConsumer()
			if _, ours := ClientOf(m.ClientID); !ok || !ours {
				continue
			}
			c.Running = true
			c.Topics = append(c.Topics, joined.Topics...)
			if slices.Contains(joined.Topics, topic) {
				c.Group = g.Group
			}
		}
	}
	slices.Sort(c.Topics)
	c.Topics = slices.Compact(c.Topics)
	if !c.Running {
		if c.Group, err = i.committed(ctx, groups, topic); err != nil {
			return Consumption{}, fmt.Errorf("kafka: who consumes %s: %w", topic, err)
		}
	}
	return c, nil
}

func (i *Inspector) groups(ctx context.Context) (kadm.DescribedGroups, error) {
	listed, err := i.adm.ListGroups(ctx)
	if err != nil || len(listed) == 0 {
		return nil, err
	}
	return i.adm.DescribeGroups(ctx, listed.Groups()...)
}

// committed returns a group that has committed offsets of a topic; empty if
// none has.
func (i *Inspector) committed(ctx context.Context, groups kadm.DescribedGroups, topic string) (string, error) {
	all := i.adm.FetchManyOffsets(ctx, groups.Names()...)
	var errs []error
	for _, g := range groups.Names() {
		errs = append(errs, all[g].Err)
		for _, o := range all[g].Fetched[topic] { // with an error it may have an offset, too
			if errs = append(errs, o.Err); o.Err == nil && all[g].Err == nil && o.At >= 0 {
				return g, nil
			}
		}
	}
	return "", errors.Join(errs...)
}

// Exists reports whether a topic exists.
func (i *Inspector) Exists(ctx context.Context, topic string) (bool, error) {
	all, err := i.adm.ListTopics(ctx, topic)
	if err != nil {
		return false, fmt.Errorf("kafka: describe topic %s: %w", topic, err)
	}
	return all.Has(topic), nil
}
