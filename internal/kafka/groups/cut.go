package groups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/patience"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// Cut is one moment of the whole log, as offsets. It has either all of a transaction of a
// partitioner (its records are before Ends, and its inputs before Groups) or nothing of it.
type Cut struct {
	Time   millrace.Time // of the moment, by the clock of the process that took it
	Log    kafka.LogID
	Ends   [kafka.Streams][partition.Count]kafka.Position  // of each stream's partitions: before Next is in the cut
	Groups map[string]map[string]map[int32]millrace.Offset // by group, topic and partition: what is before it is consumed
}

// CutConfig says which log to take a cut of.
type CutConfig struct {
	Brokers kafka.Brokers
	Topics  kafka.Topics
	Log     *slog.Logger // nil = silent
}

const (
	// holdFor is how long one hold lasts at most. A hold is a request to partitioners, in the
	// topic progress, to wait between two transactions. They go on after that by themselves.
	holdFor = time.Second
	// lookAgain is the pause between two looks during a hold.
	lookAgain = 10 * time.Millisecond
	// watchEvery is how often, during a hold, transactions are looked for that have been open
	// for too long.
	watchEvery = 250 * time.Millisecond
)

// TakeCut takes a cut of the log as it is at some moment after the call. It
// tries until ctx ends. It asks partitioners to hold between two transactions,
// and while they do, it looks, in this order:
//
//  1. up to where readers of committed records can read each partition, S;
//  2. where each partition ends, E, which must be S;
//  3. what the groups have committed, stable offsets only, G;
//  4. where each partition ends: it must be E again.
//
// Then E and G are a cut, whatever partitioners did meanwhile, for this reason.
// A transaction's records are acknowledged, that is before the ends, and its
// offsets are handed over, before it is decided. Its end is written to a
// partition, which lets readers of committed records pass it there, after it is
// decided. Let a transaction have a record r before E, in partition p. When S
// was asked of p the end of p was E at most, since ends only grow, and at least
// S, which is E. So r was there, and the transaction was ended in p. Hence it
// was decided before step 2, and then
//
//   - all its records were acknowledged. A record that is not before E in its
//     partition q would be before the end of q in step 4, which is E: a
//     contradiction. So all its records are before E, and ended there, as in p.
//   - its offsets were handed over to the group's coordinator. In step 3 that
//     has them, or refuses to tell them as not stable. So they are in G.
//
// Let a transaction have records, and none of them before E. In step 4 they
// were not there, so it was not decided in step 3, and its offsets were not
// stable: they are not in G. The proof does not need the hold: it only makes
// success likely. A partitioner that is frozen has an open transaction, which
// step 2 sees, or none. One that wakes up in between either moves an end before
// step 4, or does not matter. Readers do not see aborted transactions. A
// transaction without records in the log (only with dead letters) changes only
// G, and may be on either side. A group is known in the topic progress before
// its first transaction (Introduce), and step 3 reads that topic to its end.
//
// The proof assumes that the leader of a partition knows its end, and a group's
// coordinator its offsets. A broker that is cut off from Kafka's controllers and
// thinks it still leads may tell old ones, to anybody.
func TakeCut(ctx context.Context, cfg CutConfig) (Cut, error) {
	k, err := newCutter(cfg)
	if err != nil {
		return Cut{}, err
	}
	defer k.close()
	for pause := patience.First; ; pause = min(2*pause, patience.Max) {
		cut, err := k.round(ctx)
		if err == nil {
			return cut, nil
		}
		if ctx.Err() != nil {
			return Cut{}, fmt.Errorf("kafka: no cut of the log: %w", errors.Join(k.reason, ctx.Err()))
		}
		k.reason = err
		if cfg.Log != nil {
			cfg.Log.Info("kafka: no cut of the log yet; trying again", "reason", err)
		}
		patience.Sleep(ctx, pause)
	}
}

// cutter takes one cut.
type cutter struct {
	cfg      CutConfig
	topics   kafka.Topics
	streams  [kafka.Streams]string // names of topics
	cl       *kgo.Client
	adm      *kadm.Client
	progress *progress.Log
	hold     progress.Hold
	reason   error                         // why the last attempt gave no cut
	open     map[openTransaction]time.Time // since when each has been seen open
}

func newCutter(cfg CutConfig) (*cutter, error) {
	cl, err := kafka.NewClient(cfg.Brokers, cfg.Log, kafka.Cancellable())
	if err != nil {
		return nil, err
	}
	topics := cfg.Topics.WithDefaults()
	said, err := progress.Open(progress.Config{Brokers: cfg.Brokers, Topic: topics.Progress, Log: cfg.Log})
	if err != nil {
		cl.Close()
		return nil, err
	}
	return &cutter{
		cfg: cfg, topics: topics, streams: [kafka.Streams]string{topics.Timeline, topics.Features}, cl: cl, adm: kadm.NewClient(cl), progress: said, open: map[openTransaction]time.Time{},
		hold: progress.Hold{Key: fmt.Sprintf("%s%016x", progress.HoldKey, rand.Uint64())},
	}, nil
}

func (k *cutter) close() {
	k.progress.Close()
	k.cl.Close()
}

// round looks for a cut during one hold, again and again until there is one or the hold is
// over.
func (k *cutter) round(ctx context.Context) (cut Cut, err error) {
	asking, cancel := context.WithTimeout(ctx, patience.TryTimeout)
	defer cancel()
	if err := k.progress.Refresh(asking); err != nil {
		return cut, err
	}
	k.hold.Round++
	defer k.release(ctx)
	if err := k.writeHold(asking, k.hold); err != nil {
		return cut, err
	}
	var watched time.Time
	for end := time.Now().Add(holdFor); ; patience.Sleep(ctx, lookAgain) {
		cut, err = k.look(asking)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return cut, err
		}
		k.reason = err
		if time.Since(watched) >= watchEvery {
			watched = time.Now()
			if err := k.watch(asking); err != nil {
				return cut, err
			}
		}
	}
}

// release ends the hold, even if ctx has ended.
func (k *cutter) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience.TryTimeout)
	defer cancel()
	if err := k.writeHold(ctx, nil); err != nil {
		k.warn("a hold was not taken back; partitioners go on by themselves", "key", k.hold.Key, "error", err)
	}
}

// writeHold writes the hold, or deletes it (nil).
func (k *cutter) writeHold(ctx context.Context, hold any) error {
	r := &kgo.Record{Topic: k.topics.Progress, Key: []byte(k.hold.Key)}
	if hold != nil {
		var err error
		if r.Value, err = json.Marshal(hold); err != nil {
			return err
		}
	}
	if err := k.cl.ProduceSync(ctx, r).FirstErr(); err != nil {
		return fmt.Errorf("kafka: write to topic %s: %w", r.Topic, err)
	}
	return nil
}

// look returns a cut, or why there is none at this moment.
func (k *cutter) look(ctx context.Context) (cut Cut, err error) {
	if cut.Log, err = kafka.LogNow(ctx, k.cl, k.streams); err != nil {
		return cut, err
	}
	stable, err := k.list(ctx, k.adm.ListCommittedOffsets)
	if err != nil {
		return cut, err
	}
	if cut.Ends, err = k.list(ctx, k.adm.ListEndOffsets); err != nil {
		return cut, err
	}
	if err := compare(stable, cut.Ends, "a transaction was open, or a record came"); err != nil {
		return cut, err
	}
	if cut.Groups, err = k.groups(ctx); err != nil {
		return cut, err
	}
	cut.Time = millrace.TimeOf(time.Now())
	again, err := k.list(ctx, k.adm.ListEndOffsets)
	if err != nil {
		return cut, err
	}
	if err := compare(cut.Ends, again, "a record came"); err != nil {
		return cut, err
	}
	switch id, err := kafka.LogNow(ctx, k.cl, k.streams); {
	case err != nil:
		return cut, err
	case id != cut.Log:
		return cut, fmt.Errorf("%w: the log was created again while it was looked at", kafka.ErrLostPosition)
	}
	return cut, nil
}

// list returns what the function list gives for every partition of both streams.
func (k *cutter) list(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error)) (out [kafka.Streams][partition.Count]kafka.Position, err error) {
	listed, err := list(ctx, k.streams[:]...)
	if err != nil {
		return out, fmt.Errorf("kafka: list offsets: %w", err)
	}
	for s, topic := range k.streams {
		for p := range out[s] {
			o, ok := listed.Lookup(topic, int32(p))
			if !ok || o.Err != nil {
				return out, fmt.Errorf("kafka: list offsets: %s/%d: %w", topic, p, errors.Join(o.Err, kafka.Missing(ok)))
			}
			out[s][p] = kafka.Position{Next: millrace.Offset(o.Offset), Epoch: o.LeaderEpoch}
		}
	}
	return out, nil
}

// compare returns an error that says where offsets differ, and why they may; nil if they
// do not.
func compare(a, b [kafka.Streams][partition.Count]kafka.Position, why string) error {
	var first error
	n := 0
	for s := range a {
		for p := range a[s] {
			if a[s][p].Next == b[s][p].Next {
				continue
			}
			if n++; first == nil {
				tp := kafka.TopicPartition{Stream: kafka.Stream(s), Partition: millrace.Partition(p)}
				first = fmt.Errorf("kafka: %s in %s, between %d and %d", why, tp, a[s][p].Next, b[s][p].Next)
			}
		}
	}
	if n > 1 {
		return fmt.Errorf("%w, and in %d further partitions", first, n-1)
	}
	return first
}

// groups returns what all known groups of partitioners have committed. It returns an error
// if a group is committing just now.
func (k *cutter) groups(ctx context.Context) (map[string]map[string]map[int32]millrace.Offset, error) {
	if err := k.progress.Refresh(ctx); err != nil {
		return nil, err
	}
	out := map[string]map[string]map[int32]millrace.Offset{}
	for _, g := range k.progress.Groups() {
		committed, err := k.committed(ctx, g)
		if err != nil {
			return nil, fmt.Errorf("kafka: offsets of group %s: %w", g.Group, err)
		}
		out[g.Group] = committed
	}
	return out, nil
}

// committed returns what one group has committed, of its present topics and of earlier
// ones, as far as they exist. It asks for each partition by name. Otherwise Kafka would
// leave out a partition whose first offset is being committed just now, and would not say
// that it is unstable.
func (k *cutter) committed(ctx context.Context, g progress.Progress) (map[string]map[int32]millrace.Offset, error) {
	before, err := k.adm.FetchOffsets(ctx, g.Group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, err
	}
	names := slices.Concat(slices.Collect(maps.Keys(g.Topics)), g.Missing, slices.Collect(maps.Keys(before)))
	if len(names) == 0 {
		return map[string]map[int32]millrace.Offset{}, nil
	}
	there, err := k.adm.ListTopics(ctx, names...)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.RequireStable = g.Group, true
	for topic, d := range there {
		if errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
			continue
		}
		if d.Err != nil {
			return nil, fmt.Errorf("topic %s: %w", topic, d.Err)
		}
		t := kmsg.NewOffsetFetchRequestTopic()
		t.Topic, t.Partitions = topic, d.Partitions.Numbers()
		req.Topics = append(req.Topics, t)
	}
	return offsets(ctx, k.cl, req)
}

// offsets returns the committed offsets that a request asks for, without partitions of
// which nothing is committed. An offset that is not stable is an error.
func offsets(ctx context.Context, cl *kgo.Client, req *kmsg.OffsetFetchRequest) (map[string]map[int32]millrace.Offset, error) {
	out := map[string]map[int32]millrace.Offset{}
	if len(req.Topics) == 0 { // that would ask for all
		return out, nil
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	switch err := kerr.ErrorForCode(resp.ErrorCode); {
	case errors.Is(err, kerr.GroupIDNotFound):
		return out, nil // it has committed nothing
	case err != nil:
		return nil, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
			}
			if p.Offset < 0 {
				continue
			}
			if out[t.Topic] == nil {
				out[t.Topic] = map[int32]millrace.Offset{}
			}
			out[t.Topic][p.Partition] = millrace.Offset(p.Offset)
		}
	}
	return out, nil
}
