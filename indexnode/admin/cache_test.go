package admin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// What is cached of a partition is dropped, that too whose names are too long for
// the cache to keep; what is cached of others stays.
func TestLongNamesAreDroppedWithTheirPartition(t *testing.T) {
	s, all := openNode(t)
	short, long := millrace.Entity("member:1"), millrace.Entity("member:"+strings.Repeat("x", 90))
	cached := map[millrace.Timeline]bool{}
	for _, e := range []millrace.Entity{short, long} {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r","actor":%q,"verb":"post","created_at":1700000000000}`, e))
		if err == nil {
			err = nodetest.Bring(t.Context(), all, []nodetest.Event{{Stream: kafka.Timeline, Entity: e, Schema: schemas.Activity(), Body: body}}, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		nodetest.Feature(t, all, string(e), 1)
		for _, typ := range []millrace.ContentType{"post", cache.Features, cache.Objects} {
			cached[millrace.Timeline{Entity: e, Type: typ}] = true
		}
	}
	for k := range cached {
		s.cfg.Cache.Warm().Put(k, cache.Empty)
	}
	drop := func(e millrace.Entity) {
		t.Helper()
		p := int32(partition.Of(e))
		if _, err := s.DropCache(t.Context(), &nodev1.DropCacheRequest{Partition: &p, Apply: true}); err != nil {
			t.Fatal(err)
		}
		reader := s.cfg.Cache.Reader()
		defer reader.Leave()
		for k := range cached {
			cached[k] = cached[k] && k.Entity != e
			if is := reader.Peek(k) != nil; is != cached[k] {
				t.Errorf("after partition %d was dropped, %q is cached: %v", p, k, is)
			}
		}
	}
	drop(long)
	drop(short)
}
