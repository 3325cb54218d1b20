package backups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// produce writes entries to the history's log.
func (h *history) produce(entries ...*kgo.Record) {
	h.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(h.brokers)...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(h.t, err)
	defer cl.Close()
	must(h.t, cl.ProduceSync(h.ctx, entries...).FirstErr())
}

// posted returns a post of a member, as the log has it.
func (h *history) posted(schema *schemas.Schema, topic string, e millrace.Entity, line string) *kgo.Record {
	h.t.Helper()
	body, err := schema.EncodeJSON([]byte(line))
	must(h.t, err)
	value := schemas.Frame(schema.Fingerprint(), body)
	return &kgo.Record{Topic: topic, Partition: int32(partition.Of(e)), Key: []byte(e), Value: value, Headers: []kgo.RecordHeader{{Key: kafka.HeaderCRC, Value: kafka.CRC(value)}}}
}

// A cut has the whole log up to one moment: what it restores, to a store that is empty or to
// one that broke off, is what a node has that has read the log up to there.
func TestRestoreToACut(t *testing.T) {
	begin := time.Now().Add(-time.Hour)
	h := newHistory(t, "", begin, 120)
	members := h.set
	for p := range partition.All() {
		if !members.Has(p) {
			h.all[p] = nil
		}
	}
	h.set = topology.All()
	all, err := registry.New(nil, nil)
	must(t, err)
	l, err := schemalog.Open(schemalog.Config{Brokers: h.brokers, Topic: h.topics.Schemas, Registry: all})
	must(t, err)
	defer l.Close()
	must(t, l.Publish(h.ctx, schemas.Features()))
	must(t, schemalog.Refuse(h.ctx, h.brokers, h.topics.Schemas, 7, "a test"))

	first := h.open("first")
	h.apply(first, h.before(begin.Add(60*time.Second)), begin.Add(60*time.Second))
	var told []string
	cfg := CutConfig{Name: "noon", Brokers: h.brokers, Topics: h.topics, Tell: func(step string) { told = append(told, step) }, Log: slog.New(slog.DiscardHandler)}
	some := members
	k := h.keeper(first, "some", func(c *KeeperConfig) { c.Mine = func() topology.Set { return some } })
	must(t, k.Backup(h.ctx))
	if cfg.Bucket, err = k.bucket(h.ctx); err != nil {
		t.Fatal(err)
	}
	var refused *millrace.Error
	quiet := cfg
	quiet.Tell = nil
	if _, err := TakeCut(h.ctx, quiet); !errors.As(err, &refused) || refused.Field != "backup" || !strings.Contains(refused.Detail, fmt.Sprintf("%d of 720", partition.Count-members.Len())) {
		t.Errorf("without all backups: %v", err)
	}
	some = h.set
	must(t, k.Backup(h.ctx))

	nowhere, gaveUp := context.WithTimeout(h.ctx, 100*time.Millisecond)
	defer gaveUp()
	quiet.Brokers = kafka.At("127.0.0.1:1")
	if _, err := TakeCut(nowhere, quiet); err == nil {
		t.Error("a cut is taken of a log that is nowhere")
	}

	before := slices.Collect(members.All())[0]
	features := h.posted(schemas.Features(), h.topics.Features, "member:1", `{"entity":"member:1","updated_at":1700000000000,"followers":7}`)
	unknown := &kgo.Record{Topic: h.topics.Timeline, Partition: int32(partition.Of("member:2")), Key: []byte("member:2"), Value: schemas.Frame(7, nil)}
	unknown.Headers = []kgo.RecordHeader{{Key: kafka.HeaderCRC, Value: kafka.CRC(unknown.Value)}}
	h.produce(features, unknown)
	cut, err := TakeCut(h.ctx, cfg)
	must(t, err)
	ends := func(p millrace.Partition) store.Offsets {
		at := store.Offsets{Content: h.end(p)}
		if p == partition.Of("member:1") {
			at.Features = 1
		}
		if p == partition.Of("member:2") {
			at.Content++
		}
		return at
	}
	if cut.Name != "noon" || cut.Log != h.log.String() || time.Since(time.UnixMilli(int64(cut.Time))) > time.Hour {
		t.Errorf("the cut is %q of %s at %s", cut.Name, cut.Log, cut.Time)
	}
	for p := range partition.All() {
		if want := ends(p); cut.Content[p] != want.Content || cut.Features[p] != want.Features {
			t.Errorf("partition %d: the cut is at %d and %d, not at %+v", p, cut.Content[p], cut.Features[p], want)
		}
	}
	if n := len(told); n < 3 || !strings.HasPrefix(told[n-1], "reading the log from the backups to the cut: ") || !fractionIsWhole(told[n-1]) {
		t.Errorf("told is %q", told)
	}
	h.produce(h.posted(schemas.Activity(), h.topics.Timeline, "member:1", `{"id":"late","actor":"member:1","verb":"post","created_at":5}`))
	stored, err := cfg.Bucket.Cut(h.ctx, "noon")
	if must(t, err); fmt.Sprint(stored.Content, stored.Features) != fmt.Sprint(cut.Content, cut.Features) {
		t.Error("what is in the bucket is another cut")
	}

	want := h.open("want")
	h.apply(want, h.end, begin.Add(time.Hour))
	restored, err := RestoreData(h.ctx, RestoreConfig{Bucket: cfg.Bucket, To: Target{Cut: "noon"}, Partitions: members, Data: filepath.Join(h.dir, "cut"), Store: store.Options{FlushEvery: -1}, Log: cfg.Log})
	if must(t, err); restored != members.Len() {
		t.Errorf("%d of %d partitions are restored", restored, members.Len())
	}
	got := h.open(filepath.Join("cut", "store"))
	for p := range members.All() {
		if got.Applied(p) != ends(p) || got.Digest(p).Content != want.Digest(p).Content || (got.Digest(p).Features != 0) != (p == partition.Of("member:1")) {
			t.Errorf("partition %d is at %+v with %x, and not at %+v with %x", p, got.Applied(p), got.Digest(p), ends(p), want.Digest(p))
		}
	}
	if left, err := os.ReadDir(filepath.Join(h.dir, "cut")); err != nil || len(left) != 1 {
		t.Errorf("left beside the store is %v: %v", left, err)
	}

	// Each part of the cut can be restored, for those who look. One whose tail is none cannot, nor
	// can its cut.
	lie := *cut
	lie.Name = "lie"
	var parts []*backup.CutPart
	for p := range partition.All() {
		part, base, err := cfg.Bucket.CutPart(h.ctx, stored, p)
		must(t, err)
		if parts = append(parts, part); p == before {
			part.Tail = base.Files[0].Ref
		}
	}
	must(t, errors.Join(cfg.Bucket.WriteCutParts(h.ctx, lie.Name, parts), cfg.Bucket.WriteCut(h.ctx, &lie)))
	var found []*backup.Damage
	progress := backup.NewProgress(0)
	good, err := Verify(h.ctx, VerifyConfig{Bucket: cfg.Bucket, Partitions: members, Scratch: h.dir, Progress: progress, Log: cfg.Log, Report: func(d *backup.Damage) { found = append(found, d) }})
	if must(t, err); len(found) != 1 || found[0].Kind != Unrestorable || found[0].Object != backup.ObjectOf(before, "", lie.Name) || !slices.Equal(good.Cuts, []string{"noon"}) || len(good.Backups) != members.Len() {
		t.Errorf("one part has no tail, and found is %v, and good are %v", found, good)
	}
	if s := progress.Now(); s.Done < s.Total*9/10 || s.Total == 0 {
		t.Errorf("it is over, and its progress is %v", s)
	}

	// The newest backups are of another log than the cut, or beyond it, or the log no longer
	// reaches back to them.
	c := cutter{cfg: cfg, dir: t.TempDir()}
	must(t, c.bases(h.ctx))
	c.log.Log = h.log
	for p, m := range c.base {
		c.log.Ends[kafka.Timeline][p].Next, c.log.Ends[kafka.Features][p].Next = m.Applied.Content, m.Applied.Features
	}
	must(t, c.fit())
	full := c
	full.dir = t.TempDir()
	full.log.Ends[kafka.Timeline][before].Next = h.end(before)
	full.cfg.Name = "full"
	must(t, os.Symlink("/dev/full", filepath.Join(full.dir, fmt.Sprintf("%03d", before))))
	must(t, full.readTails(h.ctx))
	if err := full.writeParts(h.ctx); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a tail on a full disk: %v", err)
	}
	for what, change := range map[string]func(*backup.Manifest){
		"of another log":    func(m *backup.Manifest) { m.Log = "another" },
		"beyond the cut":    func(m *backup.Manifest) { m.Applied.Content++ },
		"beyond it in part": func(m *backup.Manifest) { m.Applied.Features++ },
	} {
		is := *c.base[before]
		change(&is)
		other := c
		other.base[before] = &is
		if err := other.fit(); err == nil {
			t.Errorf("a backup %s fits", what)
		}
	}
	_, err = kafkatest.Admin(t, h.brokers).DeleteRecords(h.ctx, kadm.Offsets{h.topics.Timeline: {int32(before): kadm.Offset{Topic: h.topics.Timeline, Partition: int32(before), At: int64(h.end(before))}}})
	must(t, err)
	quiet.Brokers = h.brokers
	if _, err := TakeCut(h.ctx, quiet); !errors.Is(err, kafka.ErrLostPosition) {
		t.Errorf("a log that does not reach back to the backups: %v", err)
	}
	must(t, cfg.Bucket.WriteManifest(h.ctx, func() *backup.Manifest { m := *c.base[before]; m.Log = "another"; return &m }()))
	if _, err := TakeCut(h.ctx, quiet); err == nil || !strings.Contains(err.Error(), "of the log another") {
		t.Errorf("a backup of another log: %v", err)
	}
}

// fractionIsWhole reports whether a text says that all of so many are done.
func fractionIsWhole(text string) bool {
	var done, of int
	n, _ := fmt.Sscanf(text[strings.LastIndex(text, ": ")+2:], "%d of %d", &done, &of)
	return n == 2 && done == of && done > 0
}

// A tail is applied as the log is, however many records it has, and has to end at its cut.
func TestATailIsApplied(t *testing.T) {
	b := newBench(t)
	const e = millrace.Entity("member:1")
	p := partition.Of(e)
	row := registry.StoredSchema{Fingerprint: schemas.Activity().Fingerprint(), Order: 1, JSON: schemas.Activity().JSON()}
	rng := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{0, 1, gatherRecords - 1, gatherRecords, gatherRecords + 1, 3*gatherRecords + 7} {
		var all []streams.Record
		for i := range n {
			body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":%q,"verb":"post","created_at":%d,"version":%d}`, rng.IntN(n), e, i, rng.IntN(9)))
			must(t, err)
			value := schemas.Frame(row.Fingerprint, body)
			all = append(all, streams.Record{Offset: millrace.Offset(2 * i), Key: []byte(e), Value: value, CRC: kafka.CRC(value)})
		}
		to := backup.Offsets{Content: millrace.Offset(2*n + 3), Features: 2}
		want, got := b.open(fmt.Sprint("want-", n)), b.open(fmt.Sprint("got-", n))
		must(t, putRows(want, []registry.StoredSchema{row}))
		whole, err := replay(want, givenUp{}, false)
		must(t, err)
		whole.Serve(p, time.Now())
		must(t, whole.Bring(t.Context(), streams.Fetched{TopicPartition: kafka.TopicPartition{Partition: p}, Records: all, Next: to.Content}))
		a, err := newApplier(t.Context(), got, p, nil)
		must(t, err)
		must(t, putRows(got, []registry.StoredSchema{row}))
		for i := range all {
			must(t, a.add(kafka.Timeline, &all[i]))
		}
		must(t, a.finish(to))
		if got.Digest(p) != want.Digest(p) || got.Applied(p) != store.Offsets(to) {
			t.Errorf("of %d records it is at %+v with %x, want %x", n, got.Applied(p), got.Digest(p), want.Digest(p))
		}
		if err := a.finish(backup.Offsets{Content: to.Content - 1, Features: 2}); !errors.Is(err, errBeside) {
			t.Errorf("a tail that is longer than its cut: %v", err)
		}
	}
	for keep, aged := range map[time.Duration]bool{0: false, time.Hour: true} {
		a, err := newApplier(t.Context(), b.store, p, map[millrace.ContentType]store.Retention{"a": {MaxCount: 5}, "post": {MaxAge: keep}})
		if must(t, err); a.aged != aged {
			t.Errorf("kept for %s it ages: %t", keep, a.aged)
		}
	}
}

// A timeline is written as it was, the newest first; one that had nothing then is refused.
func TestATimelineIsWritten(t *testing.T) {
	begin := time.Now().Add(-time.Hour)
	h := newHistory(t, "", begin, 60)
	s := h.open("node")
	h.apply(s, h.end, begin.Add(time.Hour))
	p := partition.Of("member:3")
	var b store.Batch
	name := millrace.Timeline{Entity: "member:3", Type: "post"}
	b.Put(p, name, millrace.Record{ID: "odd", Time: math.MaxInt32, Schema: 7, Body: []byte("?")})
	b.Put(p, name, millrace.Record{ID: "cut", Time: 1, Version: 3, Schema: schemas.Activity().Fingerprint(), Body: []byte{9}})
	_, err := s.Apply(&b, nil)
	must(t, err)
	cfg := RestoreConfig{Bucket: h.backUp(s, "keeper"), Data: filepath.Join(h.dir, "scratch"), Store: store.Options{FlushEvery: -1}, Log: slog.New(slog.DiscardHandler)}
	want, err := s.Read(nil, p, name, millrace.MinTime, millrace.MaxTime)
	must(t, err)
	var out bytes.Buffer
	n, err := Timeline(h.ctx, cfg, name, &out)
	if must(t, err); n != len(want) || n < 4 {
		t.Fatalf("%d records of %d", n, len(want))
	}
	for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var r struct {
			ID, Time, Schema, Fault string
			Version                 int64
			Record                  map[string]any
			Body                    []byte
		}
		must(t, json.Unmarshal([]byte(line), &r))
		w := want[i]
		schema := "millrace.Activity " + w.Schema.String()
		if w.ID == "odd" {
			schema = w.Schema.String()
		}
		good := w.ID != "odd" && w.ID != "cut"
		if r.ID != string(w.ID) || r.Time != w.Time.String() || r.Version != w.Version || r.Schema != schema || (r.Fault == "") != good || good && r.Record["id"] != r.ID || !good && !bytes.Equal(r.Body, w.Body) || good && r.Body != nil {
			t.Errorf("line %d is %s, of %+v", i, line, w)
		}
	}
	var refused *millrace.Error
	if _, err := Timeline(h.ctx, cfg, millrace.Timeline{Entity: "member:3", Type: "like"}, &out); !errors.As(err, &refused) || refused.Field != "type" {
		t.Errorf("another type: %v", err)
	}
	if _, err := Timeline(h.ctx, cfg, name, fullWriter{}); !errors.Is(err, errFull) {
		t.Errorf("to a file that is full: %v", err)
	}
}

var errFull = errors.New("the disk is full")

type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, errFull }

// A witness is made of the log, or of a backup that is trusted and the log behind it; what
// it cannot be made of is said.
func TestWhatAWitnessIsMadeOf(t *testing.T) {
	begin := time.Now().Add(-time.Hour)
	h := newHistory(t, "", begin, 120)
	early, late := h.open("early"), h.open("late")
	half := func(p millrace.Partition) millrace.Offset { return h.end(p) / 2 }
	h.apply(early, half, begin.Add(time.Hour))
	h.apply(late, h.end, begin.Add(time.Hour))
	h.backUp(early, "early")
	bucket := h.backUp(late, "late")
	p := partition.Of("member:1")
	anybody := func(*backup.Manifest) bool { return true }
	trim := func(to millrace.Offset) {
		t.Helper()
		_, err := kafkatest.Admin(t, h.brokers).DeleteRecords(h.ctx, kadm.Offsets{h.topics.Timeline: {int32(p): kadm.Offset{Topic: h.topics.Timeline, Partition: int32(p), At: int64(to)}}})
		must(t, err)
	}
	for _, c := range []struct {
		trim    millrace.Offset
		past    bool
		none    bool // there are no backups
		of      string
		offset  millrace.Offset
		stream  kafka.Stream
		trusts  func(*backup.Manifest) bool
		source  string // what it is made of; or
		refused string // why it is not
	}{
		{of: h.log.String(), offset: h.end(p), source: "the log from its beginning"},
		{of: h.log.String(), offset: h.end(p), none: true, source: "the log from its beginning"},
		{of: h.log.String(), offset: half(p), source: "the log from its beginning"},
		{of: h.log.String(), offset: 0, source: "the log from its beginning"},
		{of: h.log.String(), offset: 0, stream: kafka.Features, source: "the log from its beginning"},
		{of: "another", offset: h.end(p), refused: "and the replicas are of another"},
		{of: h.log.String(), offset: h.end(p), past: true, refused: "no backup of before"},
		{of: h.log.String(), offset: h.end(p), past: true, none: true, refused: "no backup of before"},
		{trim: 1, of: h.log.String(), offset: h.end(p), source: "of late, and the log"},
		{trim: half(p), of: h.log.String(), offset: h.end(p) - 1, source: "of early, and the log"},
		{trim: half(p), of: h.log.String(), offset: h.end(p), trusts: func(m *backup.Manifest) bool { return m.Node == "early" }, source: "of early, and the log"},
		{trim: half(p) + 1, of: h.log.String(), offset: h.end(p), trusts: func(m *backup.Manifest) bool { return m.Node == "early" }, refused: "no backup of before"},
		{trim: half(p) + 1, of: h.log.String(), offset: h.end(p) - 1, refused: "no backup of before"},
	} {
		if c.trim > 0 {
			trim(c.trim)
		}
		cfg := WitnessConfig{Brokers: h.brokers, Topics: h.topics, Scratch: filepath.Join(h.dir, "witness"), Log: slog.New(slog.DiscardHandler), Partition: p, Of: c.of, Past: c.past, Offset: c.offset, Stream: c.stream, Trusts: c.trusts}
		if cfg.Trusts == nil {
			cfg.Trusts = anybody
		}
		if !c.none {
			cfg.Bucket = func(context.Context) (*backup.Bucket, error) { return bucket, nil }
		}
		digest, source, err := Witness(h.ctx, cfg)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%+v: from %s, %v", c, source, err)
			}
			continue
		}
		must(t, err)
		want := h.open(fmt.Sprintf("want-%d-%d-%d-%t", c.offset, c.trim, c.stream, c.none))
		h.apply(want, func(q millrace.Partition) millrace.Offset { return map[bool]millrace.Offset{true: c.offset}[q == p] }, begin.Add(time.Hour))
		sum := want.Digest(p).Content
		if c.stream == kafka.Features {
			sum = 0
		}
		if digest != sum || !strings.HasSuffix(source, c.source) {
			t.Errorf("%+v: from %s, with %x and not %x", c, source, digest, sum)
		}
		if left, err := os.ReadDir(cfg.Scratch); err == nil && len(left) > 0 {
			t.Errorf("left is %v", left)
		}
	}
	away := errors.New("the bucket is away")
	cfg := WitnessConfig{Brokers: h.brokers, Topics: h.topics, Scratch: filepath.Join(h.dir, "witness"), Log: slog.New(slog.DiscardHandler), Partition: p, Of: h.log.String(), Offset: h.end(p), Trusts: anybody, Bucket: func(context.Context) (*backup.Bucket, error) { return nil, away }}
	if _, _, err := Witness(h.ctx, cfg); !errors.Is(err, away) {
		t.Errorf("without the bucket: %v", err)
	}
}

// Every fault of a configuration is told, by its field; what was left out is filled in.
func TestConfigs(t *testing.T) {
	filled := Config{}.WithDefaults()
	if filled.Every != DefaultEvery || filled.Keep != DefaultKeep || filled.MiBPerSecond != DefaultMiBPerSecond || filled.Drill != DefaultDrill {
		t.Errorf("filled in is %+v", filled)
	}
	for _, c := range []struct {
		cfg  Config
		want []string
	}{
		{Config{}, nil}, {filled, nil}, {Config{To: "file:///a", Every: time.Second, Keep: 1}, nil},
		{Config{Every: time.Second}, []string{"backup.to"}},
		{Config{Every: -1, Keep: -1}, []string{"backup.to", "backup.every", "backup.keep"}},
		{Config{To: "s3://bucket?endpoint=http://store:9000"}, []string{"plain"}},
	} {
		got := fmt.Sprint(c.cfg.Validate())
		for _, field := range c.want {
			if !strings.Contains(got, field) {
				t.Errorf("%+v: %s, which lacks %s", c.cfg, got, field)
			}
		}
		if (c.want == nil) != (got == "<nil>") {
			t.Errorf("%+v: %s", c.cfg, got)
		}
	}
	if _, err := NewKeeper(KeeperConfig{Config: Config{Every: -1}, Dir: t.TempDir()}); err == nil {
		t.Error("a keeper is made of what is at fault")
	}
}

// A keeper backs up again and again, also after a failure.
func TestAKeeperGoesOn(t *testing.T) {
	b := newBench(t)
	b.post(20)
	ctx, stop := context.WithCancel(t.Context())
	asked := 0
	k := b.keeper(b.store, "a", func(c *KeeperConfig) {
		c.Every = time.Millisecond
		c.Identity = func(context.Context) (backup.Identity, error) {
			if asked++; asked < 3 {
				return backup.Identity{}, errFull
			}
			return backup.Identity{Name: "test", ID: "1"}, nil
		}
	})
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	for {
		k.counters.mu.Lock()
		rounds, failures := k.counters.mu.rounds, k.counters.mu.failures
		k.counters.mu.Unlock()
		if rounds >= failures+3 {
			if failures != 2 {
				t.Errorf("%d rounds failed", failures)
			}
			break
		}
		if len(done) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}
