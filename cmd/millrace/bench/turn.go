package bench

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// turn is what one measurement of a build says.
type turn struct {
	file, avro, idle span
	half             latencies
}

// span is what processes did in a time.
type span struct {
	records                                  int
	took                                     time.Duration
	sender, partitioner, node, broker, kafka time.Duration // CPU time
}

func (s *span) each(d time.Duration) float64    { return micros(d) / float64(max(1, s.records)) }
func (s *span) rate() float64                   { return float64(s.records) / s.took.Seconds() }
func (s *span) percent(d time.Duration) float64 { return 100 * d.Seconds() / s.took.Seconds() }

// pipeline is a partitioner, a node and a broker, fresh, and what brings records in.
type pipeline struct {
	c                         *Ingest
	ctx                       context.Context
	stream                    stream
	build                     *build
	partitioner, node, broker *process
	name, topic, prefix       string
	etcd, grpc                string
	sent                      int // records, by now
}

// turn measures a build once.
func (c *Ingest) turn(f *family, b *backing, x *build, s stream, file, name string) (t turn, err error) {
	before := len(f.all)
	f.binary = x.binary
	defer func() {
		if f.binary = ""; err == nil { // else the family is ended whole
			err = f.end(before)
		}
	}()
	l := &pipeline{c: c, ctx: f.ctx, stream: s, build: x, name: name, etcd: b.etcd, prefix: fmt.Sprintf("bench-%d-%s-", time.Now().UnixMilli(), name)}
	l.topic = l.prefix + "posts"
	if err := l.start(f); err != nil {
		return t, err
	}
	if t.idle, err = l.idle(); err != nil {
		return t, err
	}
	stop := l.profile()
	if t.file, err = l.span(s.records, func() (time.Duration, error) { return l.load(file) }); err != nil {
		return t, err
	}
	c.say("%s: a file: %.0f records/s; a record: load %.1f us, partitioner %.1f, node %.1f, Kafka %.1f", name, t.file.rate(),
		t.file.each(t.file.sender), t.file.each(t.file.partitioner), t.file.each(t.file.node), t.file.each(t.file.kafka))
	all, err := l.encode(s.records)
	if err != nil {
		return t, err
	}
	if t.avro, err = l.span(s.records, func() (time.Duration, error) { return l.produce(all, math.Inf(1)) }); err != nil {
		return t, err
	}
	stop()
	c.say("%s: ready Avro: %.0f records/s; a record: producer %.1f us, partitioner %.1f, node %.1f, Kafka %.1f", name, t.avro.rate(),
		t.avro.each(t.avro.sender), t.avro.each(t.avro.partitioner), t.avro.each(t.avro.node), t.avro.each(t.avro.kafka))
	t.half, err = l.visible(t.avro.rate() / 2)
	c.say("%s: at half of that, a record is visible after %s (p50), %s (p99)", name, ms(t.half.at(0.5)), ms(t.half.at(0.99)))
	return t, err
}

// start starts the roles and waits until they are ready.
func (l *pipeline) start(f *family) (err error) {
	name := l.name
	if err := assignAll(l.ctx, l.etcd, name, "node"); err != nil {
		return err
	}
	dir := filepath.Join(f.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if l.grpc, err = freeAddr(); err != nil {
		return err
	}
	common := fmt.Sprintf("etcd: [%q]\ncluster: %s\n", l.etcd, name)
	log := fmt.Sprintf("brokers: [%q]\ntopic_prefix: %q\n", l.c.Kafka, l.prefix)
	for _, r := range []struct {
		to           **process
		role, config string
	}{
		{&l.partitioner, "partitioner", log + fmt.Sprintf("content: [%q]\ngroup: %q\ninstance: bench\n", l.topic, l.prefix+"group")},
		{&l.node, "indexnode", common + log + fmt.Sprintf("id: node\ndata: %q\nlisten: 127.0.0.1:0\n", filepath.Join(dir, "node"))},
		{&l.broker, "broker", common + fmt.Sprintf("grpc: %q\n", l.grpc)},
	} {
		if *r.to, err = startRole(f, r.role, name+"-"+r.role, r.config, runtime.NumCPU()); err != nil {
			return err
		}
	}
	wait, cancel := context.WithTimeout(l.ctx, startup)
	defer cancel()
	for _, p := range []*process{l.node, l.broker} { // the partitioner's topic is not there yet
		if err := p.ready(wait); err != nil {
			return err
		}
	}
	if err := kafka.EnsureContentTopic(wait, kafka.At(l.c.Kafka), l.topic, 4, nil); err != nil {
		return err
	}
	return l.partitioner.ready(wait)
}

// cpu is what the roles have used so far.
func (l *pipeline) cpu() (s span, err error) {
	for _, r := range []struct {
		of *process
		to *time.Duration
	}{{l.partitioner, &s.partitioner}, {l.node, &s.node}, {l.broker, &s.broker}} {
		if *r.to, err = r.of.cpu(l.ctx); err != nil {
			return s, err
		}
	}
	if l.c.KafkaPID > 0 {
		s.kafka, err = processCPU(l.c.KafkaPID)
	}
	return s, err
}

// span measures what is done to bring so many records in, until all are applied.
func (l *pipeline) span(records int, send func() (sender time.Duration, err error)) (span, error) {
	before, err := l.cpu()
	if err != nil {
		return span{}, err
	}
	began := time.Now()
	sender, err := send()
	if err != nil {
		return span{}, err
	}
	l.sent += records
	if err := l.applied(); err != nil {
		return span{}, err
	}
	took := time.Since(began)
	after, err := l.cpu()
	return span{records, took, sender, after.partitioner - before.partitioner, after.node - before.node, after.broker - before.broker, after.kafka - before.kafka}, err
}

// idle measures what the roles use when nothing comes in.
func (l *pipeline) idle() (span, error) {
	if err := pause(l.ctx, 35*time.Second); err != nil { // until what follows a start is on disk
		return span{}, err
	}
	return l.span(0, func() (time.Duration, error) { return 0, pause(l.ctx, l.c.Duration/2) })
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// applied waits until the node has applied all that was sent.
func (l *pipeline) applied() error {
	for {
		n, err := l.node.counter(l.ctx, `millrace_indexnode_records_total{stream="timeline"}`)
		if err != nil || int(n) >= l.sent {
			return err
		}
		if err := pause(l.ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// counter reads a metric; 0 if it is not there yet.
func (p *process) counter(ctx context.Context, name string) (float64, error) {
	body, err := p.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, lines.Err()
}

// load has the build's own command load the file.
func (l *pipeline) load(file string) (time.Duration, error) {
	cmd := exec.CommandContext(l.ctx, l.build.binary, "load", "--topic", l.topic, "--brokers", l.c.Kafka, "--topic-prefix", l.prefix, "--etcd", l.etcd, "--cluster", l.name, file)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("load: %w: %s", err, out)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// encode makes records ready to be produced, which follow those that were sent.
func (l *pipeline) encode(n int) ([]kafka.Outgoing, error) {
	s, all := schemas.Activity(), make([]kafka.Outgoing, n)
	var text []byte
	for i := range all {
		text = l.stream.line(text[:0], l.sent+i)
		var err error
		if all[i], err = l.outgoing(s, text); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (l *pipeline) outgoing(s *schemas.Schema, text []byte) (kafka.Outgoing, error) {
	value, err := s.AppendJSON(schemas.AppendFrame(nil, s.Fingerprint()), text)
	if err != nil {
		return kafka.Outgoing{}, err
	}
	framed, err := schemas.Unframe(value)
	if err != nil {
		return kafka.Outgoing{}, err
	}
	env, err := s.Envelope(framed.Body)
	key := []byte(env.Entity)
	return kafka.Outgoing{Topic: l.topic, Partition: int32(partition.OfBytes(key)) % 4, Key: key, Value: value}, err
}

// produce sends records, no faster than so many a second, and returns what that
// took of this process.
func (l *pipeline) produce(all []kafka.Outgoing, perSecond float64) (time.Duration, error) {
	p, err := kafka.NewBulkProducer(kafka.At(l.c.Kafka), nil)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	before, began, sent := ownCPU(), time.Now(), 0
	for part := range slices.Chunk(all, 500) {
		due := began.Add(time.Duration(float64(sent) / perSecond * float64(time.Second)))
		if err := pause(l.ctx, time.Until(due)); err != nil {
			return 0, err
		}
		p.ProduceAll(l.ctx, part)
		sent += len(part)
	}
	err = p.Flush(l.ctx)
	return ownCPU() - before, err
}

// visible brings records in at a rate, and measures after what time some of them
// are in a feed.
func (l *pipeline) visible(perSecond float64) (took latencies, err error) {
	n := int(perSecond * l.c.Duration.Seconds())
	all, err := l.encode(n)
	if err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(l.ctx)
	over := make(chan struct{})
	g.Go(func() error {
		defer close(over)
		_, err := l.produce(all, perSecond)
		return err
	})
	var mu sync.Mutex
	for who := range 4 {
		g.Go(func() error {
			return l.probe(ctx, over, who, func(d time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				took = append(took, d)
			})
		})
	}
	err = g.Wait()
	slices.Sort(took)
	return took, err
}

// probe sends one record after the other, each when the one before is in the feed
// of its entity, until the load is over.
func (l *pipeline) probe(ctx context.Context, over <-chan struct{}, who int, tell func(time.Duration)) error {
	p, err := kafka.NewProducer(kafka.At(l.c.Kafka), "", nil)
	if err != nil {
		return err
	}
	defer p.Close()
	c, err := client.Dial(l.grpc)
	if err != nil {
		return err
	}
	defer c.Close()
	entity := fmt.Sprintf("probe:%d", who)
	for i := 0; ; i++ {
		select {
		case <-over:
			return nil
		case <-time.After(time.Duration(50+17*who) * time.Millisecond):
		}
		id := fmt.Sprintf("probe:%d/%d", who, i)
		out, err := l.outgoing(schemas.Activity(), fmt.Appendf(nil, `{"id":%q,"actor":%q,"verb":"post","created_at":%d}`, id, entity, streamBegins+i))
		if err != nil {
			return err
		}
		began := time.Now()
		p.Produce(ctx, out)
		if err := p.Flush(ctx); err != nil {
			return err
		}
		if err := l.await(ctx, c, entity, id); err != nil {
			return err
		}
		tell(time.Since(began))
	}
}

// await asks for a feed until a record is in it.
func (l *pipeline) await(ctx context.Context, c *client.Client, entity, id string) error {
	for {
		page, err := c.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "probe"}, Entities: []string{entity}, Limit: proto.Int64(1)})
		if err != nil {
			return err
		}
		if items := page.GetItems(); len(items) > 0 && items[0].GetId() == id {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// profile profiles the roles until the returned function is called, if that is
// asked for.
func (l *pipeline) profile() (stop func()) {
	if l.c.Profile == "" {
		return func() {}
	}
	var all sync.WaitGroup
	for role, p := range map[string]*process{"partitioner": l.partitioner, "node": l.node} {
		all.Go(func() {
			if err := p.profile(l.ctx, 30*time.Second, filepath.Join(l.c.Profile, l.name+"-"+role+".pprof")); err != nil {
				l.c.say("%s: no profile: %v", role, err)
			}
		})
	}
	return all.Wait
}

// processCPU is the CPU time that a process of this machine has used.
func processCPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("kafka-pid: %w", err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("kafka-pid: /proc/%d/stat has %d fields", pid, len(fields))
	}
	ticks := 0
	for _, f := range fields[11:13] { // user and system
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, fmt.Errorf("kafka-pid: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}
