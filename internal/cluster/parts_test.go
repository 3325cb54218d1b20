package cluster_test

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// noise is bytes that are no text.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

// partKeys are the keys of all parts of documents of models.
func (s *server) partKeys() (keys []string) {
	s.t.Helper()
	s.raw(func(e *clientv3.Client) error {
		got, err := e.Get(s.t.Context(), "/millrace/test/parts/models/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err == nil {
			for _, kv := range got.Kvs {
				keys = append(keys, string(kv.Key))
			}
		}
		return err
	})
	return keys
}

func TestLargeDocuments(t *testing.T) {
	t.Parallel()
	ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
	c := etcd.open(dir)
	docs, err := documents.Watch(ctx, c, "models")
	check(t, err)
	is := func(body []byte) func() bool {
		return func() bool { return docs.Current()["big"].Body == string(body) }
	}
	partKeys := func() []string { return etcd.partKeys() }

	first, second, small := noise(1, 3<<20), noise(2, 5<<19), noise(3, 1000)
	check(t, putDocument(ctx, docs, "big", first))
	await(t, "the first is there", docs.Changed, is(first))
	check(t, putDocument(ctx, docs, "bigger", first)) // whose parts stay where they are
	check(t, putDocument(ctx, docs, "big", second))
	await(t, "the second is there", docs.Changed, is(second))
	if keys := partKeys(); len(keys) != 6 {
		t.Fatalf("parts %q", keys)
	}
	check(t, docs.Delete(ctx, "bigger"))
	keys := partKeys()
	if len(keys) != 3 {
		t.Fatalf("parts %q", keys)
	}

	// A part that is damaged or lost: the last good one stays.
	line := func() (line string) {
		etcd.raw(func(e *clientv3.Client) error {
			got, err := e.Get(ctx, "/millrace/test/docs/models/big")
			if err == nil {
				line = string(got.Kvs[0].Value)
			}
			return err
		})
		return line
	}()
	for what, harm := range map[string]func(e *clientv3.Client) error{
		"checksum": func(e *clientv3.Client) error { // of as many bytes
			_, err := e.Put(ctx, keys[1], strings.Repeat("x", keyspace.MaxDocumentBytes))
			return err
		},
		"part 2": func(e *clientv3.Client) error { _, err := e.Delete(ctx, keys[1]); return err },
	} {
		etcd.raw(harm)
		etcd.raw(func(e *clientv3.Client) error {
			_, err := e.Put(ctx, "/millrace/test/docs/models/big", line)
			return err
		})
		await(t, "the fault is told: "+what, docs.Changed, func() bool {
			return docs.Fault() != nil && strings.Contains(docs.Fault().Error(), what) || !is(second)()
		})
		if !is(second)() {
			t.Fatal("the last good one went")
		}
	}
	check(t, putDocument(ctx, docs, "big", second))
	await(t, "the fault is over", docs.Changed, func() bool { return docs.Fault() == nil })

	// Two at once: one of both is there, whole.
	var g sync.WaitGroup
	for _, body := range [][]byte{first, second} {
		g.Go(func() {
			for putDocument(ctx, docs, "big", body) != nil {
			}
		})
	}
	g.Wait()
	await(t, "one of both is there", docs.Changed, func() bool { return docs.Fault() == nil && (is(first)() || is(second)()) })

	check(t, putDocument(ctx, docs, "big", first))
	check(t, putDocument(ctx, docs, "small", small))
	await(t, "both are there", docs.Changed, func() bool { return is(first)() && docs.Current()["small"].Body == string(small) })
	var wrong *millrace.Error
	if err := putDocument(ctx, docs, "big", make([]byte, 33<<20)); !errors.As(err, &wrong) || wrong.WayOut == "" {
		t.Errorf("33 MiB: %v", err)
	}

	// From disk, while etcd is away.
	restarted := etcd.open(dir)
	check(t, c.Close()) // once it has written
	etcd.stop()
	docs, err = documents.Watch(ctx, restarted, "models")
	check(t, err)
	for name, want := range map[string][]byte{"big": first, "small": small} {
		if !bytes.Equal([]byte(docs.Current()[name].Body), want) {
			t.Errorf("%s is another on disk", name)
		}
	}
	etcd.start()
	await(t, "etcd is back", docs.Changed, func() bool { return docs.Fault() == nil })
	check(t, putDocument(ctx, docs, "big", small))
	await(t, "it is small", docs.Changed, is(small))
	if keys := partKeys(); len(keys) != 0 {
		t.Errorf("parts left: %q", keys)
	}
}

// A large document that is not put leaves no parts: not where somebody else was first,
// nor, once the document changes, where its writer was killed.
func TestAWriteThatBreaksOffLeavesNoParts(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	d := documents.Of(c, "models")
	first, second := noise(1, 3<<20), noise(2, 5<<19)
	never := clientv3.Compare(clientv3.ModRevision(d.Key("big")), "=", 1<<40)

	put, err := d.PutIf(ctx, "big", first, never)
	if check(t, err); put || len(etcd.partKeys()) != 0 {
		t.Errorf("not put: %v, parts %q", put, etcd.partKeys())
	}
	check(t, putDocument(ctx, d, "big", first))
	kept := etcd.partKeys()
	for what, body := range map[string][]byte{"another": second, "the same": first} {
		if put, err = d.PutIf(ctx, "big", body, never); err != nil || put || !slices.Equal(etcd.partKeys(), kept) {
			t.Errorf("%s was not put: %v, %v, parts %q, want %q", what, put, err, etcd.partKeys(), kept)
		}
	}
	etcd.put("/millrace/test/parts/models/small/0123/000", "of who was killed")
	check(t, d.Change(ctx, "small", func(string) (string, error) { return "small", nil }))
	if got := etcd.partKeys(); !slices.Equal(got, kept) {
		t.Errorf("parts %q, want %q", got, kept)
	}
}

// An etcd that does not answer is away for who writes a document, as for all others.
func TestAWriteFindsThatEtcdIsAway(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	pipe := startPipe(t, etcd.addr)
	c, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{pipe.addr()}, Name: "test", Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer c.Close()
	defer pipe.thaw()
	pipe.freeze()
	done := make(chan error, 3)
	go func() { done <- putDocument(ctx, documents.Of(c, "models"), "big", noise(1, 3<<20)) }()
	go func() { done <- putDocument(ctx, documents.Of(c, "models"), "small", noise(1, 1<<10)) }()
	go func() {
		done <- artefacts.Of(c, "models").Upload(ctx, artefacts.Version{Name: "m", Version: "1", Sum: "0123"}, noise(1, 3<<20))
	}()
	for range cap(done) {
		select {
		case err := <-done:
			if !errors.Is(err, cluster.ErrAway) {
				t.Errorf("%v", err)
			}
		case <-time.After(10 * cluster.CallTimeout):
			t.Fatal("it is waited for")
		}
	}
}
