package cluster_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/documents"
)

// noise is bytes that are no text.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
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
	partKeys := func() (keys []string) {
		etcd.raw(func(e *clientv3.Client) error {
			got, err := e.Get(ctx, "/millrace/test/parts/models/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err == nil {
				for _, kv := range got.Kvs {
					keys = append(keys, string(kv.Key))
				}
			}
			return err
		})
		return keys
	}

	first, second, small := noise(1, 3<<20), noise(2, 5<<19), noise(3, 1000)
	check(t, docs.Put(ctx, "big", first))
	await(t, "the first is there", docs.Changed, is(first))
	check(t, docs.Put(ctx, "bigger", first)) // whose parts stay where they are
	check(t, docs.Put(ctx, "big", second))
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
		"checksum": func(e *clientv3.Client) error { _, err := e.Put(ctx, keys[1], "x"); return err },
		"part 2":   func(e *clientv3.Client) error { _, err := e.Delete(ctx, keys[1]); return err },
	} {
		etcd.raw(harm)
		etcd.raw(func(e *clientv3.Client) error {
			_, err := e.Put(ctx, "/millrace/test/docs/models/big", line)
			return err
		})
		await(t, "the fault is told: "+what, docs.Changed, func() bool {
			return docs.Fault() != nil && strings.Contains(docs.Fault().Error(), what)
		})
		if !is(second)() {
			t.Fatal("the last good one went")
		}
	}
	check(t, docs.Put(ctx, "big", second))
	await(t, "the fault is over", docs.Changed, func() bool { return docs.Fault() == nil })

	// Two at once: one of both is there, whole.
	var g sync.WaitGroup
	for _, body := range [][]byte{first, second} {
		g.Go(func() {
			for docs.Put(ctx, "big", body) != nil {
			}
		})
	}
	g.Wait()
	await(t, "one of both is there", docs.Changed, func() bool { return docs.Fault() == nil && (is(first)() || is(second)()) })

	check(t, docs.Put(ctx, "big", first))
	check(t, docs.Put(ctx, "small", small))
	await(t, "both are there", docs.Changed, func() bool { return is(first)() && docs.Current()["small"].Body == string(small) })
	var wrong *millrace.Error
	if err := docs.Put(ctx, "big", make([]byte, 33<<20)); !errors.As(err, &wrong) || wrong.WayOut == "" {
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
	check(t, docs.Put(ctx, "big", small))
	await(t, "it is small", docs.Changed, is(small))
	if keys := partKeys(); len(keys) != 0 {
		t.Errorf("parts left: %q", keys)
	}
}
