package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// A load that did not begin says why, and nothing of lines.
func TestLoadThatDoesNotBeginCountsNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notes.ndjson")
	if err := os.WriteFile(file, []byte(`{"id":"n1","author":"member:1","kind":"post","at":"2026-03-01T11:00:00Z"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t.Context(), "load", "--brokers", "127.0.0.1:1", "--wait", "50ms", "--topic", "posts", "--schema", "note", file)
	if err == nil || !strings.Contains(err.Error(), "no Kafka answered") || out != "" {
		t.Errorf("%v, and before it %q", err, out)
	}
}

// A load names what partitioners may refuse yet, where people see it and
// programs do not.
func TestLoadNamesTheDeadLetters(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	file := filepath.Join(t.TempDir(), "notes.ndjson")
	if err := os.WriteFile(file, []byte(`{"id":"n1","author":"member:1","kind":"post","at":"2026-03-01T11:00:00Z"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, told bytes.Buffer
	c := root()
	c.SetArgs([]string{"load", "--brokers", addr, "--force", "--topic", "posts", "--schema", "note", file})
	c.SetOut(&out)
	c.SetErr(&told)
	if err := c.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
	_, hint, _ := strings.Cut(strings.TrimSpace(told.String()), "millrace ")
	if !strings.HasPrefix(out.String(), "1 lines: 1 loaded, 0 rejected") || strings.Contains(out.String(), "deadletters") || hint == "" {
		t.Fatalf("out %q, told %q", out.String(), told.String())
	}
	if got, err := execute(ctx, strings.Fields(hint)...); err != nil || got != "no dead letters\n" {
		t.Errorf("%s: %q, %v", hint, got, err)
	}
}

// deadLetters fills the topic: a note of the future, poison, a record that an
// index node refused, and a piece of a batch.
func deadLetters(ctx context.Context, t *testing.T, addr string) {
	t.Helper()
	registry, err := registry.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	log, err := schemalog.Open(schemalog.Config{Brokers: kafka.At(addr), Topic: "schemas", Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := log.Publish(ctx, schemas.Note()); err != nil {
		t.Fatal(err)
	}
	body, err := schemas.Note().EncodeJSON([]byte(`{"id":"n2038","author":"member:1","kind":"post","at":"2038-01-19T03:14:08Z"}`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := kafka.NewProducer(kafka.At(addr), "dead-letters", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	letter := func(value []byte, headers ...string) {
		o := kafka.Outgoing{Topic: "dead-letters", Key: []byte("member:1"), Value: value}
		for i := 0; i < len(headers); i += 2 {
			o.Headers = append(o.Headers, kafka.Header{Key: headers[i], Value: []byte(headers[i+1])})
		}
		p.Produce(ctx, o)
	}
	letter(schemas.Frame(schemas.Note().Fingerprint(), body), "reason", "the producer's own", "reason", "time-in-the-future", "detail", "2038 is far away", "src", "posts/1/7")
	letter([]byte("poison"), "reason", "bad-framing", "detail", "neither framing", "src", "likes/0/3")
	letter(nil, "reason", "empty-value", "detail", "no value", "src", "posts/1/8")
	letter([]byte("half"), "reason", "unreadable-batch", "detail", "garbage", "src", "posts/2/9", "batch", "9-12", "piece", "1/2")
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// Dead letters are listed newest first, those that are asked for.
func TestDeadLettersList(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	list := func(args ...string) string {
		t.Helper()
		out, err := execute(ctx, append([]string{"deadletters", "--brokers", addr, "list"}, args...)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	if out := list(); out != "no dead letters\n" {
		t.Errorf("none: %q", out)
	}
	deadLetters(ctx, t, addr)
	for _, c := range []struct{ args, want string }{
		{"", "3 2 1 0"},
		{"--limit 2", "3 2"},
		{"--topic posts", "3 2 0"},
		{"--topic posts --limit 1", "3"},
		{"--reason bad-framing", "1"},
		{"--containing n2038", "0"},
		{"--since 1h", "3 2 1 0"},
		{"--since " + time.Now().Add(30*time.Second).UTC().Format(time.RFC3339), ""},
		{"--reason none-such", ""},
	} {
		var got []string
		var letters []struct {
			Offset int64
		}
		if err := json.Unmarshal([]byte(list(append(strings.Fields(c.args), "-o", "json")...)), &letters); err != nil {
			t.Fatalf("%s: %v", c.args, err)
		}
		for _, l := range letters {
			got = append(got, fmt.Sprint(l.Offset))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.args, got, c.want)
		}
	}
	out := list()
	for _, want := range []string{"time-in-the-future", "posts/1/7", "2038 is far away", "more of a letter: millrace deadletters show OFFSET"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q\nlacks %q", out, want)
		}
	}
	p, err := kafka.NewProducer(kafka.At(addr), "dead-letters", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 700 { // more than one span
		p.Produce(ctx, kafka.Outgoing{Topic: "dead-letters", Value: []byte("x"), Headers: []kafka.Header{{Key: "reason", Value: []byte("bad-framing")}}})
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(list("--limit", "703"), "\n")
	for i, line := range lines[1:704] {
		if offset, _, _ := strings.Cut(line, " "); offset != fmt.Sprint(703-i) {
			t.Fatalf("line %d is of offset %s, want %d", i, offset, 703-i)
		}
	}
	if want := "These are the newest 703; --limit shows more."; lines[704] != want {
		t.Errorf("%q, want %q", lines[704], want)
	}
	if out := list("--containing", "n2038", "--limit", "1"); !strings.Contains(out, "posts/1/7") {
		t.Errorf("the oldest: %q", out)
	}
	if _, err := execute(ctx, "deadletters", "--brokers", addr, "list", "--since", "yesterday"); err == nil || !strings.Contains(err.Error(), "RFC 3339") {
		t.Errorf("a bad time: %v", err)
	}
}

// One letter is shown with what it was, as far as its schema is known.
func TestDeadLettersShow(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	deadLetters(ctx, t, addr)
	for offset, wants := range map[string][]string{
		"0": {"reason: time-in-the-future", "from: posts/1/7", `"id": "n2038"`, "millrace.Note"},
		"1": {"reason: bad-framing", "key: member:1", "6 bytes", "cG9pc29u"},
		"2": {"value: null"},
		"3": {"batch: 9-12, piece 1/2"},
	} {
		out, err := execute(ctx, "deadletters", "--brokers", addr, "show", offset)
		if err != nil {
			t.Fatalf("%s: %v", offset, err)
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %q\nlacks %q", offset, out, want)
			}
		}
	}
	if out, err := execute(ctx, "deadletters", "--brokers", addr, "show", "1", "--raw"); err != nil || out != "poison" {
		t.Errorf("raw: %q, %v", out, err)
	}
	if _, err := execute(ctx, "deadletters", "--brokers", addr, "show", "99"); err == nil || !strings.Contains(err.Error(), "0 to 3") {
		t.Errorf("one that is not there: %v", err)
	}
}
