package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// decision is what became of the last transaction under a transactional id.
type decision struct {
	state    string
	producer int64
	epoch    int16
	code     int16
}

// open is a transaction that is open in a partition of the content topic.
type open struct {
	partition       int32
	producer, start int64
}

// scripted is a Kafka that says of transactions what a test has it say. Each answer is the
// next of its kind, and the last of them is said again.
type scripted struct {
	kafkatest.Cluster
	adm *kadm.Client

	mu      sync.Mutex
	decided []decision
	open    [][]open
	listed  map[string]decision
	refused error    // of a marker
	fails   kmsg.Key // the kind of request that fails; -1: none
	did     []string // the markers that were written, and the ids that were taken over
}

func newScripted(t *testing.T) *scripted {
	t.Helper()
	of, k := kafkatest.Controlled(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.RequestRetries(0))
	kafkatest.Must(t, err)
	t.Cleanup(cl.Close)
	s := &scripted{Cluster: k, adm: kadm.NewClient(cl), fails: -1}
	of.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		s.mu.Lock()
		defer s.mu.Unlock()
		if kmsg.Key(r.Key()) == s.fails {
			return nil, errors.New("it fails"), true
		}
		return s.answer(r)
	})
	return s
}

// done returns what was done, in order.
func (s *scripted) done() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.did))
}

// next returns the next of what is said of one kind.
func next[T any](all *[]T) (one T) {
	if len(*all) == 0 {
		return one
	}
	if one = (*all)[0]; len(*all) > 1 {
		*all = (*all)[1:]
	}
	return one
}

func (s *scripted) answer(r kmsg.Request) (kmsg.Response, error, bool) {
	switch req := r.(type) {
	case *kmsg.DescribeTransactionsRequest:
		resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		for _, id := range req.TransactionalIDs {
			d, known := s.listed[id]
			if !known {
				d = next(&s.decided)
			}
			one := kmsg.NewDescribeTransactionsResponseTransactionState()
			one.TransactionalID, one.State, one.ProducerID, one.ProducerEpoch, one.ErrorCode = id, d.state, d.producer, d.epoch, d.code
			resp.TransactionStates = append(resp.TransactionStates, one)
		}
		return resp, nil, true
	case *kmsg.ListTransactionsRequest:
		resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
		for name, d := range s.listed {
			if len(req.StateFilters) > 0 && !slices.Contains(req.StateFilters, d.state) {
				continue
			}
			one := kmsg.NewListTransactionsResponseTransactionState()
			one.TransactionalID, one.ProducerID, one.TransactionState = name, d.producer, d.state
			resp.TransactionStates = append(resp.TransactionStates, one)
		}
		return resp, nil, true
	case *kmsg.DescribeProducersRequest:
		resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
		now := next(&s.open)
		for _, asked := range req.Topics {
			topic := kmsg.NewDescribeProducersResponseTopic()
			topic.Topic = asked.Topic
			for _, p := range asked.Partitions {
				part := kmsg.NewDescribeProducersResponseTopicPartition()
				part.Partition = p
				for _, o := range now {
					if o.partition == p && asked.Topic == s.Content {
						one := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
						one.ProducerID, one.ProducerEpoch, one.CurrentTxnStartOffset, one.CoordinatorEpoch = o.producer, 2, o.start, -1
						part.ActiveProducers = append(part.ActiveProducers, one)
					}
				}
				topic.Partitions = append(topic.Partitions, part)
			}
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	case *kmsg.WriteTxnMarkersRequest:
		resp := req.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
		for _, m := range req.Markers {
			marker := kmsg.NewWriteTxnMarkersResponseMarker()
			marker.ProducerID = m.ProducerID
			for _, asked := range m.Topics {
				topic := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
				topic.Topic = asked.Topic
				for _, p := range asked.Partitions {
					part := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
					if part.Partition = p; s.refused != nil {
						part.ErrorCode = s.refused.(*kerr.Error).Code
					}
					topic.Partitions = append(topic.Partitions, part)
					s.did = append(s.did, fmt.Sprintf("%s/%d of %d.%d in %d commits: %v", asked.Topic, p, m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch, m.Committed))
				}
				marker.Topics = append(marker.Topics, topic)
			}
			resp.Markers = append(resp.Markers, marker)
		}
		return resp, nil, true
	case *kmsg.InitProducerIDRequest:
		if req.TransactionalID == nil {
			break
		}
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		d := next(&s.decided)
		if resp.ErrorCode = d.code; d.code == 0 {
			s.did = append(s.did, fmt.Sprintf("%s for %d ms", *req.TransactionalID, req.TransactionTimeoutMillis))
		}
		return resp, nil, true
	}
	return nil, nil, false
}

// What hangs of a transaction is ended as was decided; nothing else is, above all no
// transaction that has begun since.
func TestWhatHangsIsEndedAsDecided(t *testing.T) {
	s := newScripted(t)
	commit, abort := decision{"CompleteCommit", 7, 2, 0}, decision{"CompleteAbort", 7, 2, 0}
	at := open{1, 7, 5}
	mark := func(p, producer int, commits bool) string {
		return fmt.Sprintf("%s/%d of %d.2 in 0 commits: %v", s.Content, p, producer, commits)
	}
	for name, c := range map[string]struct {
		decided []decision
		open    [][]open
		refused error
		did     []string
		fault   bool
	}{
		"committed":                        {[]decision{commit}, [][]open{{at}}, nil, []string{mark(1, 7, true)}, false},
		"aborted":                          {[]decision{abort}, [][]open{{at}}, nil, []string{mark(1, 7, false)}, false},
		"in two partitions":                {[]decision{commit}, [][]open{{at, {2, 7, 9}}}, nil, []string{mark(1, 7, true), mark(2, 7, true)}, false},
		"it is being decided":              {[]decision{{"PrepareCommit", 7, 2, 0}, commit}, [][]open{{at}}, nil, []string{mark(1, 7, true)}, false},
		"it is being given up":             {[]decision{{"PrepareAbort", 7, 2, 0}, abort}, [][]open{{at}}, nil, []string{mark(1, 7, false)}, false},
		"the coordinator is not there yet": {[]decision{{code: kerr.CoordinatorNotAvailable.Code}, commit}, [][]open{{at}}, nil, []string{mark(1, 7, true)}, false},
		"it is not to be told":             {[]decision{{code: kerr.InvalidTxnState.Code}}, [][]open{{at}}, nil, nil, true},
		"there was none":                   {[]decision{{code: kerr.TransactionalIDNotFound.Code}}, [][]open{{at}}, nil, nil, false},
		"ongoing":                          {[]decision{{"Ongoing", 7, 2, 0}}, [][]open{{at}}, nil, nil, false},
		"nothing is open":                  {[]decision{commit}, [][]open{{{1, 7, -1}}}, nil, nil, false},
		"another's is open":                {[]decision{commit}, [][]open{{{1, 8, 5}}}, nil, nil, false},
		"its end came meanwhile":           {[]decision{commit}, [][]open{{at}, {}}, nil, nil, false},
		"another began meanwhile":          {[]decision{commit}, [][]open{{at}, {{1, 7, 6}}}, nil, nil, false},
		"another began beside it":          {[]decision{commit}, [][]open{{at}, {at, {2, 7, 9}}}, nil, []string{mark(1, 7, true)}, false},
		"another was decided meanwhile":    {[]decision{commit, {"CompleteCommit", 7, 3, 0}}, [][]open{{at}, {}}, nil, nil, false},
		"and otherwise":                    {[]decision{commit, abort}, [][]open{{at}}, nil, []string{mark(1, 7, false)}, false},
		"and of another producer":          {[]decision{commit, {"CompleteCommit", 8, 2, 0}}, [][]open{{at, {2, 8, 9}}}, nil, []string{mark(2, 8, true)}, false},
		"it is refused":                    {[]decision{commit}, [][]open{{at}}, kerr.InvalidProducerEpoch, []string{mark(1, 7, true)}, true},
	} {
		var warned strings.Builder
		said := untilSaid{cancel: func() { warned.WriteString("x") }, words: "left hanging"}
		h := hanging{adm: s.adm, name: "g/one", topics: []string{s.Content, "none"}, log: said.logger()}
		s.mu.Lock()
		s.decided, s.open, s.refused, s.did = c.decided, c.open, c.refused, nil
		s.mu.Unlock()
		err := h.endAsDecided(kafkatest.Deadline(t))
		if did := s.done(); !slices.Equal(did, c.did) || (err != nil) != c.fault || c.refused != nil && !errors.Is(err, c.refused) || (warned.Len() > 0) != (len(c.did) > 0) {
			t.Errorf("%s: %q, %v, want %q", name, did, err, c.did)
		}
	}
	// A question that is not answered is an error, and nothing is ended.
	for _, key := range []kmsg.Key{kmsg.DescribeTransactions, kmsg.Metadata, kmsg.DescribeProducers, kmsg.WriteTxnMarkers} {
		s.mu.Lock()
		s.fails, s.decided, s.open, s.did = key, []decision{commit}, [][]open{{at}}, nil
		s.mu.Unlock()
		ctx, stop := context.WithTimeout(t.Context(), 60*time.Millisecond) // what asks again and again fails then
		h := hanging{adm: s.adm, name: "g/one", topics: []string{s.Content}}
		if key == kmsg.Metadata {
			h.topics = []string{s.Topics.Timeline} // nothing of it has been asked yet
		}
		if err := h.endAsDecided(ctx); err == nil || len(s.done()) > 0 {
			t.Errorf("%s is not answered: %q, %v", key.Name(), s.done(), err)
		}
		stop()
	}
	s.mu.Lock()
	s.fails = -1
	s.mu.Unlock()
	if all, err := (hanging{adm: s.adm, topics: []string{"none"}}).open(kafkatest.Deadline(t)); all != nil || err != nil {
		t.Errorf("of topics that are not there, %v are open, %v", all, err)
	}
}

// A cut ends the transactions of partitioners that have been open for too long, and those that
// Kafka left hanging; it leaves others alone, and says so of those in the log.
func TestWhatOutlivesACut(t *testing.T) {
	s, ctx := newScripted(t), kafkatest.Deadline(t)
	l := openProgress(t, s.Cluster)
	kafkatest.Must(t, l.Introduce(ctx, "g", "one", nil, nil))
	kafkatest.Must(t, l.Refresh(ctx))
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(s.Brokers)...), kgo.RequestRetries(0))
	kafkatest.Must(t, err)
	defer cl.Close()
	at := open{1, 7, 5}
	took := "g/one for 10000 ms"
	commits := func(yes bool) []string { return []string{fmt.Sprintf("%s/1 of 7.2 in 0 commits: %v", s.Content, yes)} }
	for name, c := range map[string]struct {
		listed  map[string]decision
		open    [][]open
		fences  []decision // answers to taking an id over
		refused error
		young   bool
		did     []string
		fault   string
	}{
		"nothing is open":                      {did: nil},
		"ongoing":                              {listed: map[string]decision{"g/one": {state: "Ongoing"}}, did: []string{took}},
		"ongoing for a moment":                 {listed: map[string]decision{"g/one": {state: "Ongoing"}}, young: true},
		"ongoing, and it ends by itself":       {listed: map[string]decision{"g/one": {state: "Ongoing", code: kerr.TransactionalIDNotFound.Code}}},
		"another's":                            {listed: map[string]decision{"x/one": {state: "Ongoing"}}},
		"it is being ended":                    {listed: map[string]decision{"g/one": {state: "Ongoing"}}, fences: []decision{{code: kerr.ConcurrentTransactions.Code}, {code: kerr.CoordinatorLoadInProgress.Code}, {}}, did: []string{took}},
		"it may not be ended":                  {listed: map[string]decision{"g/one": {state: "Ongoing"}}, fences: []decision{{code: kerr.TransactionalIDAuthorizationFailed.Code}}, fault: "end transaction g/one"},
		"hanging":                              {listed: map[string]decision{"g/one": {"CompleteCommit", 7, 2, 0}}, open: [][]open{{at}}, did: commits(true)},
		"hanging, and aborted":                 {listed: map[string]decision{"g/one": {"CompleteAbort", 7, 2, 0}}, open: [][]open{{at}}, did: commits(false)},
		"hanging, of an id taken over":         {listed: map[string]decision{"g/one": {"Empty", 7, 2, 0}}, open: [][]open{{at}}, did: commits(false)},
		"hanging for a moment":                 {listed: map[string]decision{"g/one": {"CompleteCommit", 7, 2, 0}}, open: [][]open{{at}}, young: true},
		"hanging, and ended meanwhile":         {listed: map[string]decision{"g/one": {"CompleteCommit", 7, 2, 0}}, open: [][]open{{at}, {}}},
		"another has begun meanwhile":          {listed: map[string]decision{"g/one": {"CompleteCommit", 7, 2, 0}}, open: [][]open{{at}, {{1, 7, 6}}}},
		"being decided":                        {listed: map[string]decision{"g/one": {"PrepareCommit", 7, 2, 0}}, open: [][]open{{at}}},
		"hanging, and its end may not be told": {listed: map[string]decision{"g/one": {"CompleteCommit", 7, 2, 0}}, open: [][]open{{at}}, refused: kerr.InvalidProducerEpoch, did: commits(true), fault: "end a hanging transaction"},
		"another's in the log":                 {listed: map[string]decision{"x/one": {"CompleteCommit", 7, 2, 0}}, open: [][]open{{at}}, fault: s.Content + "/1 at 5, of producer 7, is not a partitioner's"},
		"nobody's in the log":                  {open: [][]open{{at}}, fault: "is not a partitioner's"},
	} {
		k := &cutter{adm: s.adm, cl: cl, progress: l, streams: [2]string{s.Content, s.Topics.Features}, open: map[openTransaction]time.Time{}}
		s.mu.Lock()
		s.listed, s.open, s.decided, s.refused, s.did = c.listed, slices.Clone(c.open), slices.Clone(c.fences), nil, nil
		s.mu.Unlock()
		if err := k.watch(ctx); len(s.done()) > 0 || err != nil {
			t.Errorf("%s: at the first look %q, %v", name, s.done(), err)
		}
		since := maps.Clone(k.open)
		for o := range k.open {
			if !c.young {
				k.open[o] = k.open[o].Add(-outlives)
			}
		}
		s.mu.Lock()
		s.open, s.refused = c.open, c.refused
		s.mu.Unlock()
		err := k.watch(ctx)
		if !slices.Equal(s.done(), c.did) || (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %q, %v, want %q, %q", name, s.done(), err, c.did, c.fault)
		}
		if c.young && !maps.Equal(k.open, since) {
			t.Errorf("%s: open since %v, and %v at the first look", name, k.open, since)
		}
	}
	for _, key := range []kmsg.Key{kmsg.ListTransactions, kmsg.DescribeTransactions, kmsg.DescribeProducers, kmsg.InitProducerID, kmsg.WriteTxnMarkers} {
		s.mu.Lock()
		s.fails, s.listed, s.open, s.refused = key, map[string]decision{"g/one": {state: "Ongoing"}, "g/two": {"CompleteCommit", 7, 2, 0}}, [][]open{{at}}, nil
		s.mu.Unlock()
		soon, stop := context.WithTimeout(ctx, 60*time.Millisecond)
		k := &cutter{adm: s.adm, cl: cl, progress: l, streams: [2]string{s.Content, s.Topics.Features}}
		old := func(openTransaction) bool { return true }
		if err := errors.Join(k.endOngoing(soon, old), k.endHanging(soon, old)); err == nil {
			t.Errorf("%s is not answered, and that is no error", key.Name())
		}
		stop()
	}
}
