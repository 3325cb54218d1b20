package minicluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/schemas"
)

// TestSchemaEvolution writes records under one version of a schema, then under
// the next, which adds a field with a default, removes one, renames one by
// alias and promotes one. Records of both answer to the new names, from warm
// caches and from disk after a restart.
func TestSchemaEvolution(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	const roles = `{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},
		{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}`
	parse := func(fields string) *schemas.Schema {
		s, err := schemas.Parse(fmt.Appendf(nil, `{"type":"record","name":"Review","namespace":"team","fields":[%s,%s]}`, roles, fields))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	v1 := parse(`{"name":"stars","type":"int"},{"name":"words","type":"int","default":0},{"name":"mood","type":"string","default":""}`)
	v2 := parse(`{"name":"rating","type":"double","aliases":["stars"]},{"name":"words","type":"long","default":0},{"name":"lang","type":"string","default":"unknown"}`)

	dir := t.TempDir()
	open := func() *Cluster {
		c, err := Start(ctx, Config{Dir: dir, Nodes: 2})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	put := func(c *Cluster, s *schemas.Schema, lines ...string) {
		t.Helper()
		var all [][]byte
		for _, line := range lines {
			all = append(all, []byte(line))
		}
		if _, err := c.Produce(ctx, c.ContentTopic(), s, each(all)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	c := open()
	put(c, v1,
		`{"id":"a","who":"shop:1","kind":"review","at":"2026-01-01T00:00:00Z","stars":5,"words":10,"mood":"happy"}`,
		`{"id":"b","who":"shop:1","kind":"review","at":"2026-01-02T00:00:00Z","stars":2,"words":20}`)
	wantIDs(ctx, t, c, `record.stars >= 2`, "b", "a") // under the old names, and warm
	put(c, v2,
		`{"id":"c","who":"shop:1","kind":"review","at":"2026-01-03T00:00:00Z","rating":4.5,"words":3000000000,"lang":"de"}`)

	check := func() {
		t.Helper()
		wantIDs(ctx, t, c, ``, "c", "b", "a")
		wantIDs(ctx, t, c, `record.rating > 4.0`, "c", "a")      // renamed and promoted
		wantIDs(ctx, t, c, `record.words < 15`, "a")             // promoted
		wantIDs(ctx, t, c, `record.lang == "unknown"`, "b", "a") // added
		wantIDs(ctx, t, c, `record.mood == "happy"`, "a")        // removed: what has it keeps it
	}
	check()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open()
	if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}
	check()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func evolved(filter string) *feedv1.GetFeedRequest {
	return &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "me"}, Entities: []string{"shop:1"}, Filter: filter}
}

func wantIDs(ctx context.Context, t *testing.T, c *Cluster, filter string, want ...string) {
	t.Helper()
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	resp, err := cl.GetFeed(ctx, evolved(filter))
	if err != nil {
		t.Fatalf("%s: %v", filter, err)
	}
	var got []string
	for _, it := range resp.Items {
		got = append(got, it.Id)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", filter, got, want)
	}
}
