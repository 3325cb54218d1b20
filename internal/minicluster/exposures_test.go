package minicluster

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/exposures"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// Every answer of an experiment is written once, as its caller got it, and no
// other.
func TestExposuresEqualAnswers(t *testing.T) { testExposures(t, "") }

// TestExposuresRealKafka is the same on a real Kafka.
func TestExposuresRealKafka(t *testing.T) {
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("no real Kafka: run make kafka and set MILLRACE_KAFKA to its address")
	}
	t.Parallel()
	testExposures(t, addr)
}

const tried = `
layers:
  - {name: shape, salt: shape, unit: viewer, holdout: [9000-9999]}
  - {name: size, salt: size, unit: viewer}
experiments:
  - {name: each, layer: shape, feeds: [home], state: running, slots: [0-5999], share: 10000,
     variants: [{name: control, weight: 5000}, {name: one, weight: 5000, set: {cap_per_entity: 1}}], forced: {member:3: one}}
  - {name: few, layer: size, feeds: [home], state: running, slots: [0-4999], share: 10000, features: 10000,
     variants: [{name: five, weight: 2500, set: {limit: 5}}, {name: ten, weight: 7500, set: {limit: 10}}]}
`

// exposing is a cluster that deals by a document and writes what it shows.
type exposing struct {
	*Cluster
	client *client.Client
	store  *experiments.Store
	prefix string // of topics
	closed bool
}

// startExposing starts one on a Kafka, its own if the address is empty, and
// waits until member:3 is forced into an experiment's variant.
func startExposing(ctx context.Context, t *testing.T, kafkaAddr, document, experiment, variant string) *exposing {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e := &exposing{prefix: fmt.Sprintf("exposures-%d-", rand.Uint32())}
	if kafkaAddr == "" {
		k, err := StartKafka(t.TempDir(), "127.0.0.1:0")
		must(err)
		t.Cleanup(k.Close)
		kafkaAddr = k.Addr()
	}
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Kafka: kafkaAddr, TopicPrefix: e.prefix, Exposures: "exposures"})
	must(err)
	e.Cluster = c
	t.Cleanup(func() {
		if !e.closed {
			_ = c.Close()
		}
	})
	_, err = c.Produce(ctx, c.ContentTopic(), schemas.Activity(), sampleRecords())
	must(err)
	must(c.WaitReady(ctx))
	must(c.WaitIndexed(ctx))
	documents, err := artefacts.Watch(ctx, c.client, experiments.Kind)
	must(err)
	e.store = &experiments.Store{Documents: documents, Known: everything{}, Who: "a test"}
	_, err = e.store.Define(ctx, "tried", []byte(document))
	must(err)
	e.client, err = client.Dial(c.GRPC)
	must(err)
	t.Cleanup(func() { _ = e.client.Close() })
	for began := time.Now(); ; {
		resp, err := e.client.GetFeed(ctx, e.request("member:3", ""))
		must(err)
		if resp.Receipt.Variants[experiment] == variant {
			return e
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatal("the broker does not deal")
		}
	}
}

func (e *exposing) request(viewer, token string) *feedv1.GetFeedRequest {
	var followed []string
	for _, m := range sample.Members() {
		followed = append(followed, string(m))
	}
	return &feedv1.GetFeedRequest{Feed: "home", Viewer: &feedv1.Viewer{Id: viewer}, Entities: followed[:min(100, len(followed))], PageToken: token}
}

func testExposures(t *testing.T, kafkaAddr string) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c := startExposing(ctx, t, kafkaAddr, tried, "each", "one")
	answers := map[string]*feedv1.GetFeedResponse{}
	viewers, served, want := map[string]string{}, map[string]int{}, 0
	n := 1000
	if testing.Short() {
		n = 100
	}
	for i := range n {
		viewer := fmt.Sprintf("member:%d", i)
		before := 0
		for page, token := 0, ""; page < 2; page++ {
			req := c.request(viewer, token)
			req.Explain = i%4 == 0
			resp, err := c.client.GetFeed(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			id := resp.Receipt.AnswerId
			if answers[id] != nil || len(id) != 32 {
				t.Fatalf("the id %q again", id)
			}
			answers[id], viewers[id], served[id] = resp, viewer, before
			before += len(resp.Items)
			if token = resp.NextPageToken; token == "" {
				break
			}
		}
	}
	c.closed = true
	if err := c.Close(); err != nil { // writes what waits
		t.Fatal(err)
	}
	read := readExposures(ctx, t, c.Kafka, c.prefix+"exposures")
	again := map[string]bool{}
	if others, _, err := exposures.Read(ctx, kafka.At(c.Kafka), c.prefix+"exposures", 0, func(r *exposure.Record) { again[r.ID] = true }); err != nil || others > 0 || len(again) != len(read) {
		t.Errorf("%d others, %d of %d are read: %v", others, len(again), len(read), err)
	}
	heldOut, explained, split := 0, 0, map[string]int{}
	for id, resp := range answers {
		r := read[id]
		if len(resp.Receipt.Variants) > 0 || r != nil && len(r.HeldOut) > 0 {
			want++
		}
		if r != nil && len(r.Experiments)+len(r.HeldOut) == 0 {
			t.Fatalf("written for nothing: %+v", r)
		}
		switch {
		case r == nil && len(resp.Receipt.Variants) == 0:
			continue
		case r == nil:
			t.Fatalf("an answer of %v is not written", resp.Receipt.Variants)
		}
		if r.Viewer != viewers[id] || r.ServedBefore != served[id] || len(r.Items) != len(resp.Items) || len(r.Experiments) != len(resp.Receipt.Variants) {
			t.Fatalf("%+v\nof\n%v", r, resp)
		}
		for _, e := range r.Experiments {
			if resp.Receipt.Variants[e.Experiment] != e.Variant || e.Unit != r.Viewer || len(e.Checksum) != 64 {
				t.Fatalf("%+v of %v", e, resp.Receipt.Variants)
			}
			if want := map[string]float64{"control": 0.3, "one": 0.3, "five": 0.125, "ten": 0.375}[e.Variant]; e.Probability != want && !e.Forced || e.Forced != (r.Viewer == "member:3" && e.Experiment == "each") {
				t.Fatalf("%+v", e)
			}
			split[e.Variant]++
		}
		for i, it := range r.Items {
			got := resp.Items[i]
			if it.Place != i+1 || it.ID != got.Id || it.Entity != got.Entity || it.Type != got.Type || it.Score != got.Score {
				t.Fatalf("%+v of %v", it, got)
			}
		}
		explained += sameFeatures(t, r, resp)
		if m := r.Models[0]; m.Name != resp.Receipt.Model || m.Version != resp.Receipt.ModelVersion {
			t.Fatalf("%+v of %v", m, resp.Receipt)
		}
		heldOut += len(r.HeldOut)
	}
	if heldOut == 0 || explained == 0 || len(split) != 4 {
		t.Errorf("%d held out, %d explained, %v: the test tries too little", heldOut, explained, split)
	}
	t.Logf("%d answers, %d written, %v", len(answers), want, split)
}

// sameFeatures holds the features of a record against those by which its answer
// is explained, and returns how many there are of them.
func sameFeatures(t *testing.T, r *exposure.Record, resp *feedv1.GetFeedResponse) (n int) {
	t.Helper()
	asked := resp.Receipt.Variants["few"] != ""
	for i, it := range r.Items {
		if names := r.Models[0].Features; asked != (len(it.Features) > 0) || len(it.Features) > 0 && len(names) != len(it.Features) {
			t.Fatalf("item %d has %d features of %q", i, len(it.Features), names)
		}
		for _, f := range resp.Items[i].GetExplain().GetFeatures() {
			k := slices.Index(r.Models[0].Features, f.Feature)
			if !asked {
				continue
			}
			if k < 0 {
				t.Fatalf("no feature %s among %q", f.Feature, r.Models[0].Features)
			}
			var want exposure.Value
			switch x := f.Value.Kind.(type) {
			case *structpb.Value_NumberValue:
				want = exposure.Number(x.NumberValue)
			case *structpb.Value_StringValue:
				want = exposure.Text(x.StringValue)
			default:
				want = exposure.Missing()
			}
			if got := it.Features[k]; got != want && !(math.IsNaN(got.Number) && math.IsNaN(want.Number)) {
				t.Fatalf("item %d: %s is %v, and %v by its account", i, f.Feature, got, want)
			}
			n++
		}
	}
	return n
}

// everything is there.
type everything struct{}

func (everything) HasFeed(string) bool            { return true }
func (everything) IsPrivate(string) (bool, error) { return false, nil }
func (everything) HasModel(string) bool           { return true }
func (everything) CheckFilter(string) error       { return nil }

func (everything) CheckWeights(string, string, map[string]float64) error { return nil }

// readExposures reads a topic to its end, by the answers' ids. It must be written
// by producers without transactions.
func readExposures(ctx context.Context, t *testing.T, addr, topic string) map[string]*exposure.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	all := map[string]*exposure.Record{}
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			framed, err := schemas.Unframe(r.Value)
			if err != nil || framed.Fingerprint != schemas.Exposure().Fingerprint() {
				t.Fatal(framed, err)
			}
			record, err := exposure.Decode(framed.Fingerprint, framed.Body)
			if err != nil {
				t.Fatal(err)
			}
			if all[record.ID] != nil {
				t.Errorf("%s is written twice", record.ID)
			}
			if !bytes.Equal(r.Key, []byte(record.Viewer)) {
				t.Errorf("key %q of %q", r.Key, record.Viewer)
			}
			all[record.ID] = record
		})
	}
	return all
}
