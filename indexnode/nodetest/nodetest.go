// Package nodetest is what tests of the index node share: records as they come from the log,
// ways to apply them to replicas, and questions.
package nodetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// Event is one record of the log, from the topic timeline or features.
type Event struct {
	Stream kafka.Stream
	Entity millrace.Entity // whose timeline the record is of, or that routes the features
	Schema *schemas.Schema
	Body   []byte
	At     millrace.Time // when it was logged
}

// Bring applies events, all of one stream and partition, as one poll of the log after which
// next is the next offset to read. All of them have the offset next-1.
func Bring(ctx context.Context, h *replica.Replicas, events []Event, next millrace.Offset) error {
	f := streams.Fetched{TopicPartition: kafka.TopicPartition{Stream: events[0].Stream, Partition: partition.Of(events[0].Entity)}, Next: next}
	for _, e := range events {
		value := schemas.Frame(e.Schema.Fingerprint(), e.Body)
		crc := binary.BigEndian.AppendUint32(nil, crc32.Checksum(value, crc32.MakeTable(crc32.Castagnoli)))
		f.Records = append(f.Records, streams.Record{Offset: next - 1, Key: []byte(e.Entity), Value: value, CRC: crc, Time: e.At})
	}
	return h.Bring(ctx, f)
}

// BringLine applies one record of member:1, given as JSON: an activity, or features if stream
// is kafka.Features. Next is as in [Bring].
func BringLine(t testing.TB, h *replica.Replicas, stream kafka.Stream, line string, next millrace.Offset) {
	t.Helper()
	schema := schemas.Activity()
	if stream == kafka.Features {
		schema = schemas.Features()
	}
	body, err := schema.EncodeJSON([]byte(line))
	if err == nil {
		err = Bring(t.Context(), h, []Event{{Stream: stream, Entity: "member:1", Schema: schema, Body: body}}, next)
	}
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
}

// BringOf applies one record of member:1, given as JSON of schema s.
func BringOf(t testing.TB, h *replica.Replicas, s *schemas.Schema, line string, next millrace.Offset) {
	t.Helper()
	body, err := s.EncodeJSON([]byte(line))
	if err == nil {
		err = Bring(t.Context(), h, []Event{{Stream: kafka.Timeline, Entity: "member:1", Schema: s, Body: body}}, next)
	}
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
}

// Members applies records posts for each of count members, and returns the members' names.
func Members(t testing.TB, h *replica.Replicas, count, records int) (names []string) {
	next := map[millrace.Partition]millrace.Offset{}
	for i := range count {
		names = append(names, fmt.Sprint("member:", i))
		var events []Event
		for j := range records {
			body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"%d/%d","actor":%q,"verb":"post","created_at":%d,"text":"About photos of a day at sea"}`, i, j, names[i], 1_700_000_000_000+int64(j)))
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, Event{Stream: kafka.Timeline, Entity: millrace.Entity(names[i]), Schema: schemas.Activity(), Body: body})
		}
		p := partition.Of(millrace.Entity(names[i]))
		next[p] += millrace.Offset(records)
		if err := Bring(t.Context(), h, events, next[p]); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// Review returns the schema shop.NAME. It has the fields that Millrace itself reads (id, who,
// kind, at), and the given ones, each as JSON.
func Review(t testing.TB, name string, fields ...string) *schemas.Schema {
	t.Helper()
	roles := `{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},` +
		`{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}`
	s, err := schemas.Parse([]byte(`{"type":"record","name":"` + name + `","namespace":"shop","fields":[` + strings.Join(append([]string{roles}, fields...), ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// World draws the events of a small and busy network: few entities in few
// partitions, records that are replaced, moved, deleted before and after they
// come, and times that tie.
type World struct {
	r        *rand.Rand
	Entities []millrace.Entity
	At       int64 // of the newest record, about
}

var (
	// Verbs are the content types of a [World]'s records.
	Verbs     = []string{"post", "like", "comment", "share"}
	languages = []string{"en", "de", "English", "Russian"}
)

// NewWorld returns the world of a seed.
func NewWorld(seed uint64) *World {
	w := &World{r: rand.New(rand.NewPCG(seed, 9)), At: 1_700_000_000_000}
	for i := range 24 {
		w.Entities = append(w.Entities, millrace.Entity(fmt.Sprintf("member:%d", i)))
	}
	return w
}

func oneOf[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// Draw draws the next event: features with a probability of 1/6, else an activity.
func (w *World) Draw(t testing.TB) Event {
	e := oneOf(w.r, w.Entities)
	schema, stream, line := schemas.Activity(), kafka.Timeline, ""
	if w.r.IntN(6) == 0 {
		schema, stream = schemas.Features(), kafka.Features
		line = fmt.Sprintf(`{"entity":%q,"subject":%q,"updated_at":%d,"followers":%d,"engagement":%d}`, e,
			oneOf(w.r, []string{"", string(e), "o1", "o2", "object:3", fmt.Sprintf("r%d", w.r.IntN(600))}), w.At+w.r.Int64N(1000), w.r.IntN(4), w.r.IntN(9))
	} else {
		w.At += w.r.Int64N(3)
		at := w.At
		if w.r.IntN(5) == 0 {
			at -= w.r.Int64N(2000)
		}
		line = fmt.Sprintf(`{"id":"r%d","actor":%q,"verb":%q,"created_at":%d,"version":%d,"deleted":%t,"object":%q,"language":%q,"country":"India","text":"About %d photos","likes":%d,"comments":%d}`,
			w.r.IntN(600), e, oneOf(w.r, Verbs), at, w.r.IntN(5), w.r.IntN(8) == 0, oneOf(w.r, []string{"", "o1", "o2", "object:3", string(e)}),
			oneOf(w.r, languages), w.r.IntN(9), w.r.IntN(5), w.r.IntN(3))
	}
	body, err := schema.EncodeJSON([]byte(line))
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return Event{Stream: stream, Entity: e, Schema: schema, Body: body}
}

// Pack packs entities by partition, lowest first, as brokers do.
func Pack(names ...string) (b []byte) {
	names = slices.Clone(names)
	slices.SortStableFunc(names, func(a, b string) int {
		return int(partition.Of(millrace.Entity(a))) - int(partition.Of(millrace.Entity(b)))
	})
	for _, e := range names {
		b = partition.AppendEntity(b, partition.Of(millrace.Entity(e)), millrace.Entity(e))
	}
	return b
}

// All returns a request for everything of member:1, after change has changed it.
func All(change func(*nodev1.QueryRequest)) *nodev1.QueryRequest {
	req := &nodev1.QueryRequest{
		Entities: Pack("member:1"), ToMs: int64(millrace.MaxTime), AsOfMs: 1_700_000_000_000, Limit: 10, Model: "recency", Viewer: &feedv1.Viewer{Id: "v"},
	}
	change(req)
	return req
}

// OfAll returns a request for the posts of several entities.
func OfAll(names []string) *nodev1.QueryRequest {
	return &nodev1.QueryRequest{Entities: Pack(names...), Types: []string{"post"}, ToMs: int64(millrace.MaxTime), Limit: 10, Model: "recency"}
}

// PackOf seals a model with one golden row: a record with the score that the model must give
// it.
func PackOf(t testing.TB, spec, row string, known relevance.Schemas) *modelpack.Pack {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{modelpack.SpecFile: spec, modelpack.GoldenFile: row + "\n", modelpack.CardFile: "Likes.\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := modelpack.Seal(dir, known)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Lines applies a few records of member:1, with features of it and of an object.
func Lines(t testing.TB, h *replica.Replicas) {
	t.Helper()
	for i, line := range []string{
		`{"id":"r1","actor":"member:1","verb":"post","created_at":1700000000000,"object":"o1","likes":3}`,
		`{"id":"r2","actor":"member:1","verb":"post","created_at":1700000000001,"object":"o1","likes":4}`,
		`{"id":"r3","actor":"member:1","verb":"like","created_at":1700000000002,"object":"r1"}`,
	} {
		BringLine(t, h, kafka.Timeline, line, millrace.Offset(i+1))
	}
	BringLine(t, h, kafka.Features, `{"entity":"member:1","subject":"member:1","updated_at":1700000000000,"followers":7}`, 1)
	BringLine(t, h, kafka.Features, `{"entity":"member:1","subject":"o1","updated_at":1700000000000,"followers":8}`, 2)
}

// CPUTime returns the CPU time that the process has used. Tests measure that, since elapsed
// time depends on what else the machine does.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Likes seals the model of LikesSpec.
func Likes(t testing.TB) *modelpack.Pack {
	t.Helper()
	return PackOf(t, LikesSpec, LikesRow, relevance.ShippedSchemas())
}

// LikesSpec and LikesRow are the spec and the golden row of the model that [Likes] seals.
const (
	LikesSpec = `name: likes
version: "1"
schemas: [millrace.Activity]
entity: millrace.Features
viewer: {taste: double}
features: {likes: record.likes, followers: entity.followers, taste: viewer.taste, verb: record.verb}
scorer: linear
parameters: {weights: {likes: 1, followers: 1, taste: 1, verb: {post: 1}}}
`
	LikesRow = `{"features":{"likes":1,"followers":1,"taste":1,"verb":"post"},"score":4,"record":{"likes":1,"verb":"post"},"entity":{"followers":1},"viewer":{"taste":1}}`
)

// Feature applies features of an entity, with i followers, as the next record of the stream.
func Feature(t testing.TB, h *replica.Replicas, name string, i int) {
	t.Helper()
	body, err := schemas.Features().EncodeJSON(fmt.Appendf(nil, `{"entity":%q,"subject":%q,"updated_at":1700000000000,"followers":%d}`, name, name, i))
	if err == nil {
		e := Event{Stream: kafka.Features, Entity: millrace.Entity(name), Schema: schemas.Features(), Body: body}
		err = Bring(t.Context(), h, []Event{e}, h.Of(partition.Of(e.Entity)).Applied()[kafka.Features]+1)
	}
	if err != nil {
		t.Fatal(err)
	}
}
