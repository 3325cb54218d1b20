package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// setUp starts a Kafka with Millrace's topics.
func setUp(t *testing.T) (context.Context, kafka.Brokers) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	must(t, kafka.EnsureTopics(ctx, kafka.At(c.ListenAddrs()...), kafka.Topics{}, nil))
	return ctx, kafka.At(c.ListenAddrs()...)
}

// read returns n records of a topic.
func read(t *testing.T, ctx context.Context, brokers kafka.Brokers, topic string, n int) (out []*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(brokers)...), kgo.ConsumeTopics(topic))
	must(t, err)
	defer cl.Close()
	for len(out) < n {
		fetches := cl.PollFetches(ctx)
		must(t, fetches.Err())
		out = append(out, fetches.Records()...)
	}
	return out
}

const good = `{"id":"n%d","author":"member:%d","kind":"post","at":"2026-03-01T11:00:00Z","stars":3}`

func TestRun(t *testing.T) {
	ctx, brokers := setUp(t)
	bad := []string{
		`{"id":"n1","author":"member:1","kind":"post","at":"2026-03-01T11:00:00Z","stars":"three"}`,
		`{"id":"n1","author":"member:1","kind":"post","at":"2026-03-01T11:00:00Z","start":3}`,
		`{"id":"n1","author":"member:1","kind":"post"}`,
		`{"id":"n1","author":"","kind":"post","at":"2026-03-01T11:00:00Z"}`,
		`not JSON`,
		`{"id":"` + strings.Repeat("x", maxLineBytes) + `"}`,
	}
	var file bytes.Buffer
	for i := range 10 {
		fmt.Fprintf(&file, good+"\n", i, i%3)
		if i < len(bad) {
			fmt.Fprintf(&file, "%s\n\n", bad[i])
		}
	}
	fmt.Fprintf(&file, good, 10, 1) // without an end

	for _, name := range []string{"notes.ndjson", "notes.ndjson.zst"} {
		dir, topic, content := t.TempDir(), strings.ReplaceAll(name, ".", "-"), file.Bytes()
		if strings.HasSuffix(name, ".zst") {
			enc, err := zstd.NewWriter(nil)
			must(t, err)
			content = enc.EncodeAll(content, nil)
		}
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
		var progress bytes.Buffer
		r, err := Run(ctx, Options{Brokers: brokers, Topic: topic, Schema: schemas.Note(), File: filepath.Join(dir, name), Force: true, Progress: &progress})
		must(t, err)
		if r.Lines != 17 || r.Loaded != 11 || r.Rejected != 6 || r.Bytes != int64(len(content)) || r.RejectedFile != filepath.Join(dir, "notes.rejected.ndjson") {
			t.Errorf("%s: %+v", name, r)
		}
		checkFaults(t, r.Faults)
		aside, err := os.ReadFile(r.RejectedFile)
		must(t, err)
		if want := append(slices.Clone(bad[:5]), bad[5][:maxLineBytes], ""); string(aside) != strings.Join(want, "\n") {
			t.Errorf("%s: %d bytes written aside, not the rejected lines", name, len(aside))
		}
		if got := progress.String(); !strings.Contains(got, "100 %  11 loaded") || !strings.HasSuffix(got, "  6 rejected\n") {
			t.Errorf("%s: progress %q", name, got)
		}
		checkRecords(t, read(t, ctx, brokers, topic, 11))
	}
	schema := read(t, ctx, brokers, "schemas", 1)
	if len(schema) != 1 || string(schema[0].Key) != schemas.Note().Fingerprint().String() {
		t.Errorf("%d schemas published, want one, once", len(schema))
	}
}

func checkFaults(t *testing.T, faults []LineFault) {
	t.Helper()
	for i, want := range []string{`line 2: field "stars": `, `line 5: field "start": `, `line 8: field "at": `, `line 11: field "author": `, `line 14: `, `line 17: longer than`} {
		if got := faults[i].String(); !strings.HasPrefix(got, want) {
			t.Errorf("fault %d: %q, want %q", i, got, want)
		}
	}
}

// checkRecords wants notes n0 to n10, those of one author on one partition and
// in order.
func checkRecords(t *testing.T, records []*kgo.Record) {
	t.Helper()
	partition, last := map[string]int32{}, map[string]int64{}
	var ids []string
	for _, r := range records {
		framed, err := schemas.Unframe(r.Value)
		must(t, err)
		env, err := schemas.Note().Envelope(framed.Body)
		must(t, err)
		ids = append(ids, string(env.Record.ID))
		author := string(env.Entity)
		if p, ok := partition[author]; ok && (p != r.Partition || r.Offset < last[author]) {
			t.Errorf("%s: %s on partitions %d and %d", env.Record.ID, author, p, r.Partition)
		}
		partition[author], last[author] = r.Partition, r.Offset
		if string(r.Key) != author {
			t.Errorf("key %q, author %s", r.Key, author)
		}
	}
	slices.Sort(ids)
	if want := []string{"n0", "n1", "n10", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"}; !slices.Equal(ids, want) {
		t.Errorf("loaded %v, want %v", ids, want)
	}
}

func TestRunTellsWhatIsWrong(t *testing.T) {
	ctx, brokers := setUp(t)
	_, err := Run(ctx, Options{Partitions: -1, Wait: -1})
	for _, want := range []string{"brokers: none", "topic: missing", "schema: missing", "file: missing", "partitions: -1", "wait: -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no options: %v, want %q", err, want)
		}
	}
	o := Options{Brokers: brokers, Topic: "t", Force: true, Schema: schemas.Note(), File: filepath.Join(t.TempDir(), "none.ndjson")}
	if _, err := Run(ctx, o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such file: %v", err)
	}
	// What came before the damage is loaded, and told.
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	o.File = filepath.Join(t.TempDir(), "cut.ndjson.zst")
	whole := enc.EncodeAll(fmt.Appendf(nil, good+"\n", 1, 1), nil)
	must(t, os.WriteFile(o.File, append(whole, whole[:len(whole)-3]...), 0o644))
	r, err := Run(ctx, o)
	if err == nil || !strings.Contains(err.Error(), "after line 1") || r.Loaded != 1 {
		t.Errorf("a damaged file: %v, %+v", err, r)
	}
}

// Rejected lines never go to the file that they come from, by whatever name.
func TestTheFileIsNotWrittenTo(t *testing.T) {
	ctx, brokers := setUp(t)
	dir := t.TempDir()
	file, link := filepath.Join(dir, "notes.ndjson"), filepath.Join(dir, "link.ndjson")
	content := fmt.Appendf(nil, good+"\nno note\n", 1, 1)
	must(t, os.Symlink(file, link))
	for _, o := range []Options{{File: file, Rejected: file}, {File: file, Rejected: link}, {File: link, Rejected: file}, {File: file, Rejected: dir + "/./notes.ndjson"}} {
		must(t, os.WriteFile(file, content, 0o644))
		o.Brokers, o.Topic, o.Schema, o.Force = brokers, "posts", schemas.Note(), true
		_, err := Run(ctx, o)
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != "rejected" || e.WayOut == "" {
			t.Errorf("from %s to %s: %v; want it refused", o.File, o.Rejected, err)
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, content) {
			t.Errorf("from %s to %s: the file has %q, %v", o.File, o.Rejected, got, err)
		}
	}
}

// Who reviews a schema sees what is known, and can refuse it before anything is
// loaded or published.
func TestASchemaIsReviewedFirst(t *testing.T) {
	ctx, brokers := setUp(t)
	o := oneNote(t, brokers, "posts")
	o.Force = true
	if r, err := Run(ctx, o); err != nil || r.Loaded != 1 {
		t.Fatalf("%v, %+v", err, r)
	}
	next, err := schemas.Parse([]byte(strings.Replace(schemas.Note().JSON(), `"fields": [`, `"fields": [{"name": "more", "type": "long", "default": 0},`, 1)))
	must(t, err)
	o.Schema = next
	refusal := errors.New("not this one")
	o.Review = func(_ context.Context, known *registry.Snapshot, add *schemas.Schema) error {
		if known.ByFingerprint(schemas.Note().Fingerprint()) == nil || known.ByFingerprint(next.Fingerprint()) != nil || add != next {
			t.Errorf("%d schemas are known", len(known.All()))
		}
		return refusal
	}
	if r, err := Run(ctx, o); !errors.Is(err, refusal) || r.Loaded != 0 {
		t.Errorf("%v, %+v", err, r)
	}
	if n := ends(t, ctx, brokers, "posts") + ends(t, ctx, brokers, kafka.Topics{}.WithDefaults().Schemas); n != 2 {
		t.Errorf("%d records and schemas are there, want one of each", n)
	}
}

// Lines are encoded beside each other, and still come in their order: the records
// of each author, the rejected lines, and what is told of them.
func TestRunKeepsTheOrder(t *testing.T) {
	ctx, brokers := setUp(t)
	const lines, authors, every = 20 * chunkLines, 7, 1000
	var file, rejected bytes.Buffer
	for i := range lines {
		line := fmt.Sprintf(`{"id":"n%d","author":"member:%d","kind":"post","at":"2026-03-01T11:00:00Z","text":%q}`+"\n", i, i%authors, strings.Repeat("x", i/chunkLines*10))
		if i%every == 0 {
			line = fmt.Sprintf("line %d\n", i)
			rejected.WriteString(line)
		}
		file.WriteString(line)
	}
	o := Options{Brokers: brokers, Topic: "posts", Schema: schemas.Note(), File: filepath.Join(t.TempDir(), "notes.ndjson"), Force: true}
	must(t, os.WriteFile(o.File, file.Bytes(), 0o644))
	r, err := Run(ctx, o)
	must(t, err)
	if r.Lines != lines || r.Rejected != lines/every || r.Loaded != lines-lines/every || len(r.Faults) != lines/every {
		t.Errorf("%d lines, %d loaded, %d rejected, %d faults", r.Lines, r.Loaded, r.Rejected, len(r.Faults))
	}
	for i, f := range r.Faults {
		if f.Line != i*every+1 {
			t.Errorf("fault %d is of line %d, want %d", i, f.Line, i*every+1)
		}
	}
	aside, err := os.ReadFile(r.RejectedFile)
	if must(t, err); !bytes.Equal(aside, rejected.Bytes()) {
		t.Error("the rejected lines are not as they were, in order")
	}
	last := map[string]int{}
	for _, x := range read(t, ctx, brokers, "posts", r.Loaded) {
		framed, err := schemas.Unframe(x.Value)
		must(t, err)
		env, err := schemas.Note().Envelope(framed.Body)
		must(t, err)
		n, err := strconv.Atoi(string(env.Record.ID[1:]))
		if must(t, err); n <= last[string(x.Key)] && n > 0 {
			t.Fatalf("%s: n%d comes behind n%d", x.Key, n, last[string(x.Key)])
		}
		last[string(x.Key)] = n
	}
}

// The file of rejected lines is the caller's alone, also where it was there before and
// others could read it.
func TestRejectedLinesAreTheCallersAlone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rejected.ndjson")
	must(t, os.WriteFile(name, []byte("before"), 0o644))
	must(t, os.Chmod(name, 0o644)) // whatever the umask
	a := &aside{name: name}
	must(t, a.write([]byte("line")))
	must(t, a.Close())
	is, err := os.Stat(name)
	must(t, err)
	if text, err := os.ReadFile(name); err != nil || string(text) != "line\n" || is.Mode().Perm() != 0o600 {
		t.Errorf("it is %v and has %q: %v", is.Mode(), text, err)
	}
}
