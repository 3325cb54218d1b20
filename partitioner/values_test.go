package partitioner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// still returns a partitioner that does not run.
func still(t *testing.T, log *slog.Logger) *Partitioner {
	t.Helper()
	p, err := New(Config{Brokers: kafka.At("127.0.0.1:1"), Content: []string{"posts"}, Instance: "one", Group: "g"}, log, prometheus.NewRegistry())
	must(t, err)
	return p
}

// Every field of the configuration is checked, and each fault is told with what to do.
func TestValidate(t *testing.T) {
	good := Config{Brokers: kafka.At("127.0.0.1:1"), Content: []string{"posts"}, Instance: "one"}
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"as it is":                     {func(*Config) {}, ""},
		"features alone":               {func(c *Config) { c.Content, c.Features = nil, []string{"signals"} }, ""},
		"no topics":                    {func(c *Config) { c.Content = nil }, "content: there are no topics"},
		"a broker beyond loopback":     {func(c *Config) { c.Brokers = kafka.At("kafka:9092") }, "connect.kafka"},
		"no future":                    {func(c *Config) { c.Future = 0 }, ""},
		"a group of skips":             {func(c *Config) { c.Group = "skip:x" }, `group: "skip:x" begins with "skip:"`},
		"a group of the history":       {func(c *Config) { c.Group = "history:" }, `group: "history:" begins with "history:"`},
		"a registry that is none":      {func(c *Config) { c.SchemaRegistry = "nowhere" }, "schema_registry"},
		"a registry":                   {func(c *Config) { c.SchemaRegistry = "http://127.0.0.1:1" }, ""},
		"own topics of one name":       {func(c *Config) { c.Topics.Progress = "timeline" }, `topics: "timeline" is named twice`},
		"features that are content":    {func(c *Config) { c.Features = []string{"posts"} }, `features[0]: "posts" is named twice`},
		"features without a name":      {func(c *Config) { c.Features = []string{"x", ""} }, "features[1]: a topic has no name"},
		"content of a topic of others": {func(c *Config) { c.Topics.DeadLetters = "posts" }, `content[0]: "posts" is named twice`},
	} {
		cfg := good
		c.change(&cfg)
		err := cfg.Validate()
		if _, made := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); (made == nil) != (err == nil) {
			t.Errorf("%s: %v, and it is made with %v", name, err, made)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	d := good.withDefaults()
	if d.Group != DefaultGroup || d.SchemaWait != defaultSchemaWait || d.Future != schemas.DefaultFuture || d.Topics.Timeline != "timeline" || !strings.Contains(d.Address, ", process ") {
		t.Errorf("the defaults are %+v", d)
	}
	own := Config{Group: "g", SchemaWait: -1, Future: time.Minute, Address: "here", Content: []string{"a"}, Features: []string{"b"}}.withDefaults()
	if own.Group != "g" || own.SchemaWait != -1 || own.Future != time.Minute || own.Address != "here" || !slices.Equal(own.inputs(), []string{"a", "b"}) {
		t.Errorf("what is given is %+v", own)
	}
	reg := prometheus.NewRegistry()
	if _, err := New(good, slog.New(slog.DiscardHandler), reg); err != nil {
		t.Error(err)
	}
	if _, err := New(good, slog.New(slog.DiscardHandler), reg); err == nil {
		t.Error("the metrics are registered twice")
	}
}

// Records that wait are told if nobody brings them on: since when, and why.
func TestIdle(t *testing.T) {
	w, fault := newFake(t), errors.New("no way")
	p, _ := w.start()
	w.untilReady(p, "")
	p.state.Lock()
	defer p.state.Unlock()
	for _, c := range []struct {
		name    string
		topics  map[string]progress.TopicProgress
		failed  error
		commits time.Duration // how long ago the last was
		want    string
	}{
		{"nothing waits", map[string]progress.TopicProgress{"a": {WaitedMillis: 99_000}}, fault, time.Hour, ""},
		{"they wait for a moment", map[string]progress.TopicProgress{"a": {Waiting: 1, WaitedMillis: 5999}}, nil, time.Hour, ""},
		{"and nothing is committed", map[string]progress.TopicProgress{"a": {Waiting: 1, WaitedMillis: 6000}, "b": {Waiting: 2}}, nil, 6 * time.Second, "3 records wait since 6s, and this process has committed nothing since"},
		{"others were committed since", map[string]progress.TopicProgress{"a": {Waiting: 1, WaitedMillis: 3_600_000}}, nil, time.Minute, ""},
		{"transactions fail", map[string]progress.TopicProgress{"a": {Waiting: 1}}, fault, 0, "1 records wait, and transactions fail: no way"},
		{"a transaction is open", map[string]progress.TopicProgress{"a": {Open: 2, WaitedMillis: 60_000}}, nil, 0, "topic a: a producer's transaction is open since 1m0s, and 2 records in or behind it wait"},
		{"one is open for a moment", map[string]progress.TopicProgress{"a": {Open: 2, WaitedMillis: 59_999}}, nil, 0, ""},
	} {
		p.state.failed, p.state.committed = c.failed, time.Now().Add(-c.commits)
		err := p.idle(progress.Progress{Topics: c.topics})
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	p.state.failed = nil
}

// A group whose outputs are other topics is told first, and logged once, however often it is
// found.
func TestHalt(t *testing.T) {
	var log strings.Builder
	p := still(t, slog.New(slog.NewTextHandler(&log, nil)))
	halts := 0
	p.on.halted, p.pace.logs = func() { halts++ }, time.Nanosecond
	p.state.waits = nil
	other := &groups.OtherLog{Group: "g", Changes: []string{"it is another"}}
	for range 3 {
		p.halt(t.Context(), other)
	}
	if err := p.Ready(); !errors.Is(err, other) || halts != 3 || strings.Count(log.String(), "nothing is partitioned") != 1 {
		t.Errorf("%v after %d: %s", err, halts, &log)
	}
	p.state.failed = fmt.Errorf("stands by: %w", groups.ErrFenced)
	if err := p.Ready(); !errors.Is(err, groups.ErrFenced) {
		t.Errorf("fenced: %v", err)
	}
}

// The places where a process is stuck: one in each partition, until it is read past or lost.
func TestStuckAt(t *testing.T) {
	p := still(t, slog.New(slog.DiscardHandler))
	s := p.stuck
	at := func(topic string, partition int32, offset int64) progress.Stuck {
		return progress.Stuck{Topic: topic, Partition: partition, Offset: millrace.Offset(offset)}
	}
	for _, a := range []progress.Stuck{at("a", 0, 5), at("a", 0, 7), at("a", 1, 5), at("b", 0, 5)} {
		s.add(a)
	}
	if n := value(p.metrics.stuck); n != 3 || len(s.all()) != 3 || !s.has("a", 0) || !s.has("a", 1) || !s.has("b", 0) || s.has("b", 1) || s.has("c", 0) || slices.Contains(s.all(), at("a", 0, 5)) {
		t.Errorf("%v places: %v", n, s.all())
	}
	in := func(topic string, partition int32, offset int64) []groups.Input {
		return []groups.Input{{Source: kafka.Source{Topic: "z", Partition: 9, Offset: 99}}, {Source: kafka.Source{Topic: topic, Partition: partition, Offset: millrace.Offset(offset)}}}
	}
	for want, records := range map[bool][][]groups.Input{true: {in("a", 1, 5), in("a", 1, 6)}, false: {nil, in("a", 1, 4), in("b", 1, 5), in("a", 0, 5)}} {
		for _, r := range records {
			if isPast(r, at("a", 1, 5)) != want {
				t.Errorf("%v is past a/1/5: %v", r, !want)
			}
		}
	}
	s.keep(func(x progress.Stuck) bool { return x.Topic == "b" })
	if n := value(p.metrics.stuck); n != 1 || s.has("a", 0) || !s.has("b", 0) {
		t.Errorf("%v places are left: %v", n, s.all())
	}
	must(t, p.noteFault(t.Context(), io.ErrUnexpectedEOF))
	must(t, p.noteFault(t.Context(), &groups.Unreadable{Topic: "b"})) // it is known
	if n := value(p.metrics.faults); n != 2 {
		t.Errorf("%v faults are counted", n)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	fault := &groups.Unreadable{Topic: "c", Err: io.EOF}
	p.cfg.Brokers = kafka.Brokers{}
	if err := p.noteFault(ctx, fault); !errors.Is(err, fault) || s.has("c", 0) {
		t.Errorf("a place that cannot be found out: %v", err)
	}
}

// An operator's word skips the place that it names, and no other.
func TestToSkip(t *testing.T) {
	w := newFake(t)
	p, err := New(w.cfg, slog.New(slog.DiscardHandler), w.metrics())
	must(t, err)
	must(t, p.open())
	defer p.close()
	named := progress.Stuck{Topic: "posts", Partition: 1, Offset: 5, Kind: progress.Trimmed}
	must(t, progress.RequestSkip(w.ctx, w.brokers, w.cfg.Topics.Progress, named.Skip(w.cfg.Group)))
	must(t, progress.RequestSkip(w.ctx, w.brokers, w.cfg.Topics.Progress, progress.Stuck{Topic: "likes"}.Skip("other")))
	must(t, p.progress.Refresh(w.ctx))
	for what, change := range map[string]func(*progress.Stuck){
		"": func(*progress.Stuck) {}, "topic": func(s *progress.Stuck) { s.Topic = "likes" }, "partition": func(s *progress.Stuck) { s.Partition = 0 },
		"offset": func(s *progress.Stuck) { s.Offset = 6 }, "kind": func(s *progress.Stuck) { s.Kind = progress.Closed },
	} {
		at := named
		change(&at)
		p.stuck.keep(func(progress.Stuck) bool { return false })
		p.stuck.add(at)
		if got := p.toSkip(); (len(got) == 1) != (what == "") || len(got) == 1 && (got[0].Stuck != named || got[0].asked != named.Skip(w.cfg.Group)) {
			t.Errorf("another %s: %+v", what, got)
		}
	}
}

// Dead letters in a row are counted from transaction to transaction.
func TestPoison(t *testing.T) {
	for _, c := range []struct {
		t      transaction
		before int
		want   int
	}{{transaction{run: 3}, 4, 7}, {transaction{run: 3, lively: true}, 4, 3}, {transaction{lively: true}, 4, 0}, {transaction{}, 4, 4}} {
		if got := c.t.poison(c.before); got != c.want {
			t.Errorf("%d in a row, want %d", got, c.want)
		}
	}
}

// Of a transaction, everything that was done is counted once it is committed.
func TestTallies(t *testing.T) {
	p := still(t, slog.New(slog.DiscardHandler))
	for range 2 {
		p.metrics.commit(map[string]*tally{"posts": {consumed: 9, published: 4, copies: 7, ignored: 2, dead: map[schemas.Reason]int{schemas.BadValue: 3}}})
	}
	m := p.metrics
	for name, c := range map[string]struct {
		of   prometheus.Metric
		want float64
	}{
		"transactions": {m.transactions, 2}, "consumed": {m.consumed.WithLabelValues("posts"), 18}, "published": {m.published.WithLabelValues("posts"), 8},
		"copies": {m.copies.WithLabelValues("posts"), 14}, "ignored": {m.ignored.WithLabelValues("posts"), 4}, "dead": {m.deadLettered.WithLabelValues("posts", string(schemas.BadValue)), 6},
	} {
		if got := value(c.of); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	m.measured(progress.Progress{Topics: map[string]progress.TopicProgress{"posts": {Waiting: 3, Open: 2, WaitedMillis: 1500}}})
	if a, b, c := value(m.waiting.WithLabelValues("posts")), value(m.open.WithLabelValues("posts")), value(m.waited.WithLabelValues("posts")); a != 3 || b != 2 || c != 1.5 {
		t.Errorf("%v wait, %v open, for %v s", a, b, c)
	}
}

// A dead letter has the input byte for byte, and says why in a bounded text.
func TestNewDeadLetter(t *testing.T) {
	in := groups.Input{Source: kafka.Source{Topic: "posts", Partition: 1, Offset: 7}, Key: []byte("k"), Value: []byte("v")}
	in.Headers = append(make([]kafka.Header, 0, 9), kafka.Header{Key: "own"})
	why := func(n int) *schemas.Error {
		e := &schemas.Error{Reason: schemas.BadValue}
		e.Detail = strings.Repeat("é", n)
		return e
	}
	base := len(why(0).Error())
	for _, n := range []int{1, (maxDetailBytes - base) / 2, (maxDetailBytes-base)/2 + 1, 999} {
		o := newDeadLetter("dead", in, why(n))
		detail := string(o.Headers[2].Value)
		whole := why(n).Error()
		if fits := len(whole) <= maxDetailBytes; fits && detail != whole || !fits && (len(detail) > maxDetailBytes || len(detail) < maxDetailBytes-1 || !strings.HasPrefix(whole, detail) || strings.Contains(detail, "\ufffd")) {
			t.Errorf("of %d bytes the detail has %d", len(whole), len(detail))
		}
		if o.Topic != "dead" || !bytes.Equal(o.Key, in.Key) || !bytes.Equal(o.Value, in.Value) || len(o.Headers) != 4 || o.Headers[0].Key != "own" ||
			o.Headers[1].Key != kafka.HeaderReason || string(o.Headers[1].Value) != string(schemas.BadValue) || o.Headers[2].Key != kafka.HeaderDetail || o.Headers[3].Key != kafka.HeaderSource || string(o.Headers[3].Value) != "posts/1/7" {
			t.Errorf("%+v", o)
		}
	}
	if in.Headers[:2][1].Key != "" {
		t.Error("the input's headers were written to")
	}
}

// All metrics are registered, under the names that alerts and dashboards have.
func TestMetricsAreRegistered(t *testing.T) {
	r := prometheus.NewRegistry()
	m, err := newMetrics(r, kafka.At("127.0.0.1:1"))
	must(t, err)
	m.begin([]string{"posts"})
	for _, c := range []*prometheus.CounterVec{m.skipped, m.lost} {
		c.WithLabelValues("posts")
	}
	m.measured(progress.Progress{Topics: map[string]progress.TopicProgress{"posts": {}}})
	families, err := r.Gather()
	must(t, err)
	var names []string
	for _, f := range families {
		if name, ours := strings.CutPrefix(f.GetName(), "millrace_partitioner_"); ours && !strings.HasPrefix(name, "kafka_") {
			names = append(names, name)
		}
	}
	if want := []string{"consumed_total", "copies_total", "dead_lettered_total", "failures_total", "held_seconds_total", "holds_total", "ignored_total", "lost_records_total", "open_records", "other_log", "paused",
		"published_total", "read_faults_total", "skipped_batches_total", "stuck_partitions", "transactions_total", "unasked_schema_ids_total", "waited_seconds", "waiting_records"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// A pause is told while it lasts, and is over by itself.
func TestRest(t *testing.T) {
	p := still(t, slog.New(slog.DiscardHandler))
	p.pace.pause = time.Nanosecond
	rests := 0
	p.on.resting = func() {
		if rests++; !p.state.paused || value(p.metrics.paused) != 1 {
			t.Error("it is not told")
		}
	}
	if p.rest(t.Context()); p.state.paused || value(p.metrics.paused) != 0 || rests != 1 {
		t.Errorf("after it: paused %v, %v", p.state.paused, value(p.metrics.paused))
	}
}

// A topic that deletes records is told in the log.
func TestDeletesAreWarnedOf(t *testing.T) {
	w := newFake(t)
	week := "604800000"
	_, err := w.admin().AlterTopicConfigs(w.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &week}}, w.cfg.Topics.Features)
	must(t, err)
	var log strings.Builder
	p, err := New(w.cfg, slog.New(slog.NewTextHandler(&log, nil)), w.metrics())
	must(t, err)
	if p.warnOfDeletes(w.ctx); strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "features deletes what is older than 168h") {
		t.Errorf("%s", &log)
	}
}

// A transaction ends once it has read or written enough, and does not wait for more; and the
// next may have twice as many records, up to the bound.
func TestATransactionEndsOnceItHasEnough(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pace){
		"records read":    func(p *pace) { p.records = 1 },
		"records written": func(p *pace) { p.records = 3 },
		"bytes written":   func(p *pace) { p.bytes = 1 },
	} {
		w := newFake(t)
		w.publish(schemas.Activity())
		p, stop := w.start(func(p *Partitioner) {
			p.pace.gather, p.pace.behind, p.pace.quiet = time.Hour, time.Hour, time.Hour
			change(&p.pace)
			p.batch = p.pace.records
		})
		w.produce(&kgo.Record{Topic: "posts", Value: activity(t, "p1", "member:1", `,"about":["group:1","group:2"]`)})
		if out := w.read(3); len(out["timeline"]) != 3 {
			t.Errorf("%s: %v", name, out)
		}
		stop()
		if p.batch != p.pace.records {
			t.Errorf("%s: the next has %d records", name, p.batch)
		}
	}
	w := newFake(t)
	w.publish(schemas.Activity())
	var committed chan struct{}
	slow := func(records int) func(*Partitioner) {
		return func(p *Partitioner) {
			p.pace.gather, p.pace.behind, p.pace.quiet, p.pace.records, p.batch = time.Hour, time.Hour, time.Hour, records, records
			committed = commits(p)
		}
	}
	_, stop := w.start(slow(1))
	w.produce(&kgo.Record{Topic: "posts", Key: []byte("k")}) // is ignored, so that nothing is written
	<-committed
	stop()
	p, stop := w.start(slow(2))
	for i := range 2 {
		w.produce(&kgo.Record{Topic: "posts", Value: activity(t, fmt.Sprint("p", i), "member:1", "")})
	}
	if w.read(2); value(p.metrics.transactions) > 1 {
		t.Errorf("%v transactions, and one had room for both", value(p.metrics.transactions))
	}
	stop()
	p, stop = w.start(func(p *Partitioner) { p.pace.records, p.batch = 8, 1 })
	for i := range 4 {
		w.post(fmt.Sprint("p", i))
	}
	if stop(); p.batch != 8 {
		t.Errorf("after four transactions the next has %d records, want 8", p.batch)
	}
}

// A record of an unknown schema is refused without a wait, where none is configured.
func TestAnUnknownSchemaIsNotWaitedFor(t *testing.T) {
	v, err := newRouter(t).route(t.Context(), record(schemas.Frame(12345, []byte("x"))))
	if err != nil || v.outcome != dead || v.refusal.Reason != schemas.UnknownSchema {
		t.Errorf("%+v, %v", v, err)
	}
}

// Refused ids are remembered up to a bound, with a bounded text.
func TestRefusedIDsAreBounded(t *testing.T) {
	r := newResolver(nil, nil)
	long := schemas.Error{Reason: schemas.UnknownSchema, Detail: strings.Repeat("x", maxDetailBytes+1)}
	for id := range uint32(maxRefused) {
		r.refuse(id, long)
	}
	if len(r.refused) != maxRefused || len(r.refused[0].why.Detail) != maxDetailBytes || time.Until(r.refused[0].until) > refusedFor || time.Until(r.refused[0].until) < refusedFor/2 {
		t.Errorf("%d are remembered: %+v", len(r.refused), r.refused[0])
	}
	if _, err := r.confluent(t.Context(), schemas.Framed{Confluent: true, ID: 5}); err == nil || err.Error() != r.refused[5].why.Error() {
		t.Errorf("one that is remembered: %v", err)
	}
	r.refuse(maxRefused, long)
	if len(r.refused) != 1 || r.refused[maxRefused].why == nil {
		t.Errorf("%d are remembered after one more", len(r.refused))
	}
	if unknown(nil) || unknown(io.EOF) || unknown(&schemas.Error{Reason: schemas.BadValue}) || !unknown(fmt.Errorf("x: %w", &long)) {
		t.Error("what is unknown is told otherwise")
	}
}

// A place of a former session is forgotten: another process may have skipped it meanwhile.
func TestPlacesOfAFormerSessionAreForgotten(t *testing.T) {
	w := newFake(t)
	p, _ := w.start(func(p *Partitioner) { p.stuck.add(progress.Stuck{Topic: "posts", Offset: 5}) })
	w.untilReady(p, "")
}

// While no session can be opened the process says so and tries again; then it goes on.
func TestASessionThatCannotBeOpened(t *testing.T) {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(broker.Close)
	w := newWorld(t, kafka.At(broker.ListenAddrs()...), "")
	w.publish(schemas.Activity())
	var refused, again atomic.Bool
	refused.Store(true)
	broker.ControlKey(int16(kmsg.FindCoordinator), func(r kmsg.Request) (kmsg.Response, error, bool) {
		broker.KeepControl()
		req := r.(*kmsg.FindCoordinatorRequest)
		if req.CoordinatorType != 1 || !refused.Load() { // of transactions
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		for _, key := range req.CoordinatorKeys {
			c := kmsg.NewFindCoordinatorResponseCoordinator()
			c.Key, c.ErrorCode = key, kerr.TransactionalIDAuthorizationFailed.Code
			resp.Coordinators = append(resp.Coordinators, c)
		}
		again.Store(true)
		return resp, nil, true
	})
	p, stop := w.start(func(p *Partitioner) { p.pace.backoff = 10 * time.Millisecond })
	w.untilReady(p, "waiting for a place in the group group after a failure: ")
	refused.Store(false)
	w.produce(&kgo.Record{Topic: "posts", Value: activity(t, "p1", "member:1", "")})
	w.read(1)
	w.untilReady(p, "")
	stop()
	if n := value(p.metrics.failures); n < 1 || !again.Load() || p.batch >= p.pace.records {
		t.Errorf("%v failures, and the next transaction may have %d of %d records", n, p.batch, p.pace.records)
	}
}
