package admin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// beside gives a service a Kafka, with partitioners that say what they read.
func beside(t *testing.T, s *Server, groups map[string]string) kafkatest.Cluster {
	t.Helper()
	k := kafkatest.Fake(t)
	s.cfg.Brokers, s.cfg.Topics = k.Brokers, k.Topics
	for name, kinds := range groups {
		heartbeat := fmt.Sprintf(`{"instance":"i","at_ms":%d,"topics":{},%s}`, time.Now().UnixMilli(), kinds)
		if err := follow.Put(kafkatest.Deadline(t), k.Brokers, k.Topics.Progress, name, []byte(heartbeat)); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// produce writes entries to a Kafka in one request.
func produce(t *testing.T, k kafkatest.Cluster, entries ...*kgo.Record) {
	t.Helper()
	cl, err := kafka.NewClient(k.Brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(kafkatest.Deadline(t), entries...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// consume returns the entries of a topic, of which there are n, in the order of their values.
func consume(t *testing.T, k kafkatest.Cluster, topic string, n int) (all []*kgo.Record) {
	t.Helper()
	cl, err := kafka.NewClient(k.Brokers, nil, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for len(all) < n {
		fetches := cl.PollFetches(kafkatest.Deadline(t))
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		all = append(all, fetches.Records()...)
	}
	slices.SortFunc(all, func(a, b *kgo.Record) int { return bytes.Compare(a.Value, b.Value) })
	return all
}

// letterOf returns a dead letter as partitioners write it.
func letterOf(k kafkatest.Cluster, source, reason string, value []byte, more ...kgo.RecordHeader) *kgo.Record {
	return &kgo.Record{Topic: k.Topics.DeadLetters, Key: []byte("key of " + source), Value: value, Headers: append([]kgo.RecordHeader{
		{Key: kafka.HeaderReason, Value: []byte(reason)}, {Key: kafka.HeaderSource, Value: []byte(source)},
	}, more...)}
}

// framed returns an activity as producers write it.
func framed(t *testing.T, id string, at int64) []byte {
	t.Helper()
	body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":%q,"actor":"member:1","verb":"post","created_at":%d}`, id, at))
	if err != nil {
		t.Fatal(err)
	}
	return schemas.Frame(schemas.Activity().Fingerprint(), body)
}

// Dead letters are counted by topic and reason, from an offset or a time on; of what anybody
// may write there no more is told apart than has room.
func TestDeadLettersAreCounted(t *testing.T) {
	s, _ := openNode(t)
	k := beside(t, s, nil)
	var all []*kgo.Record
	write := func(source, reason string) {
		all = append(all, letterOf(k, source, reason, nil))
		all[len(all)-1].Timestamp = time.UnixMilli(base + int64(len(all)))
	}
	for i := range maxLetterCounts - 2 {
		write("posts/1/1", fmt.Sprintf("odd-%04d", i))
	}
	write("posts/1/2", "late") // 998
	write("posts/2/3", "late")
	write("none", "late")    // 1000
	write("other/0/0", "of") // no room
	write("posts/0/9", "late")
	write("other/0/1", "\xff")
	produce(t, k, all...)
	count := func(req *nodev1.CountDeadLettersRequest) string {
		t.Helper()
		resp, err := s.CountDeadLetters(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Next != int64(len(all)) {
			t.Errorf("%v: the next is %d of %d", req, resp.Next, len(all))
		}
		var text []string
		for _, c := range resp.Counts {
			text = append(text, fmt.Sprintf("%s %s %d", c.Topic, c.Reason, c.Letters))
		}
		if !strings.Contains(text[0], "odd") {
			return strings.Join(text, ", ")
		}
		return fmt.Sprint(len(text))
	}
	from := func(i int64) *int64 { return &i }
	for want, req := range map[string]*nodev1.CountDeadLettersRequest{
		"  2": {},
		" late 1, other ? 1, other of 1, posts late 3": {From: from(maxLetterCounts - 2)},
		"other ? 1, other of 1, posts late 1":          {From: from(maxLetterCounts + 1)},
		"other ? 1":                                    {SinceMs: base + int64(len(all))},
		"other ? 1, posts late 1":                      {SinceMs: base + int64(len(all)) - 1},
		"other ? 1, posts late 1, ":                    {From: from(maxLetterCounts + 2), SinceMs: base},
	} {
		if got := count(req); !strings.HasPrefix(got, strings.TrimSuffix(want, ", ")) {
			t.Errorf("from %v since %d: %s, want %s", req.From, req.SinceMs, got, want)
		}
	}
	for _, beyond := range []int64{int64(len(all)), int64(len(all)) + 7} {
		if resp, err := s.CountDeadLetters(t.Context(), &nodev1.CountDeadLettersRequest{From: &beyond}); err != nil || len(resp.Counts) > 0 || resp.Next != int64(len(all)) {
			t.Errorf("from %d on: %v, %v", beyond, resp, err)
		}
	}
	if resp, err := s.CountDeadLetters(t.Context(), &nodev1.CountDeadLettersRequest{From: from(-7)}); err != nil || len(resp.Counts) != maxLetterCounts+1 {
		t.Errorf("from the beginning on: %d pairs, %v", len(resp.GetCounts()), err)
	}
	s.cfg.Topics.DeadLetters = "none"
	if resp, err := s.CountDeadLetters(t.Context(), &nodev1.CountDeadLettersRequest{}); err != nil || len(resp.Counts) > 0 {
		t.Errorf("where there is no topic: %v, %v", resp, err)
	}
}

// A dead letter is judged as partitioners judge it now, and goes to the topic that it came
// from, to the only one of its kind, or to the one that is named; or it says why not.
func TestDeadLettersAreReplayed(t *testing.T) {
	s, _ := openNode(t)
	read := audited(t, s)
	k := beside(t, s, map[string]string{
		"one":   `"kinds":{"posts":"content","facts":"features"},"future_ms":3600000`,
		"other": `"kinds":{"more":"content"}`,
	})
	soon := time.Now().Add(2 * time.Hour).UnixMilli()
	facts, err := schemas.Features().EncodeJSON([]byte(`{"entity":"member:2","subject":"member:2","updated_at":1}`))
	if err != nil {
		t.Fatal(err)
	}
	confluent := append([]byte{0, 0, 0, 0, 9}, facts...)
	letters := []struct {
		*kgo.Record
		topic string // that is named
		want  string // where it goes, or a part of why it does not
		id    string
		who   string
	}{
		{letterOf(k, "posts/1/1", "late", framed(t, "a", base)), "", "posts", "a", "member:1"},
		{letterOf(k, "posts/1/2", "late", framed(t, "b", base)), "more", "more", "b", "member:1"},
		{letterOf(k, "more/1/2", "late", framed(t, "c", soon)), "", "more", "c", "member:1"},
		{letterOf(k, "posts/1/3", "late", framed(t, "d", soon)), "", "time-in-the-future", "", ""},
		{letterOf(k, "gone/1/3", "late", framed(t, "e", base)), "", "several topics", "", ""},
		{letterOf(k, "facts/1/3", "late", framed(t, "f", base)), "", `no partitioner reads "facts" as content`, "", ""},
		{letterOf(k, "gone/2/3", "late", schemas.Frame(schemas.Features().Fingerprint(), facts)), "", "facts", "member:2", "member:2"},
		{letterOf(k, "posts/2/4", "late", confluent), "", "posts unjudged", "", ""},
		{letterOf(k, "gone/2/4", "late", confluent), "", "no partitioner reads", "", ""},
		{letterOf(k, "gone/2/5", "late", confluent), "facts", "facts unjudged", "", ""},
		{letterOf(k, "none", "late", framed(t, "g", base)), "", "not topic/partition/offset", "", ""},
		{letterOf(k, "posts/1/9", "late", []byte("?")), "", "framing", "", ""},
		{letterOf(k, "posts/1/9", "late", schemas.Frame(7, facts)), "", "not known yet", "", ""},
		{letterOf(k, "posts/1/9", "late", schemas.Frame(schemas.Activity().Fingerprint(), []byte{1})), "", "bad-count", "", ""},
		{letterOf(k, "posts/1/9", "batch", framed(t, "h", base), kgo.RecordHeader{Key: kafka.HeaderBatch, Value: []byte("1-2")}), "", "piece of a batch", "", ""},
	}
	var all []*kgo.Record
	for _, l := range letters {
		all = append(all, l.Record)
	}
	produce(t, k, all...)
	for _, topic := range []string{"posts", "more", "facts"} {
		if err := kafka.EnsureContentTopic(t.Context(), k.Brokers, topic, map[string]int32{"posts": 3, "more": 5, "facts": 2}[topic], nil); err != nil && topic != k.Content {
			t.Fatal(err)
		}
	}
	replay := func(named string, apply bool, offsets ...int64) (*nodev1.ReplayDeadLettersResponse, error) {
		return s.ReplayDeadLetters(t.Context(), &nodev1.ReplayDeadLettersRequest{Offsets: offsets, Topic: named, Apply: apply})
	}
	goes := map[string][]int64{} // by the topic that is named
	for i, l := range letters {
		resp, err := replay(l.topic, false, int64(i))
		if err != nil || len(resp.Letters) != 1 {
			t.Fatal(resp, err)
		}
		got := resp.Letters[0]
		says := cmp.Or(got.Refused, got.Topic)
		if got.Unjudged {
			says += " unjudged"
		}
		if got.Refused != "" && got.Topic != "" || !strings.Contains(says, l.want) || got.Refused == "" && says != l.want || got.Id != l.id || got.Entity != l.who || got.Offset != int64(i) || !strings.Contains(string(l.Key), got.Source) || got.Reason != string(l.Headers[0].Value) {
			t.Errorf("letter %d is answered with %v, want %s", i, got, l.want)
		}
		goes[l.topic] = append(goes[l.topic], int64(i))
	}
	if len(read()) > 0 {
		t.Errorf("written down is %v", read())
	}
	partitions := map[string]uint64{"posts": 3, "more": 5, "facts": 2}
	wanted := map[string][]string{}
	for _, named := range slices.Sorted(maps.Keys(goes)) {
		slices.Reverse(goes[named])
		resp, err := replay(named, true, append(goes[named], goes[named][0])...)
		if err != nil || len(resp.Letters) != len(goes[named]) || !slices.IsSortedFunc(resp.Letters, func(a, b *nodev1.ReplayedLetter) int { return cmp.Compare(a.Offset, b.Offset) }) {
			t.Fatalf("%v of %v, %v", resp, goes[named], err)
		}
		for _, l := range resp.Letters {
			if l.Topic != "" {
				from := letters[l.Offset]
				wanted[l.Topic] = append(wanted[l.Topic], fmt.Sprintf("%s %q %d", from.Key, from.Value, partition.Hash(millrace.Entity(from.Key))%partitions[l.Topic]))
			}
		}
	}
	writes := 0
	for topic, want := range wanted {
		var got []string
		for _, r := range consume(t, k, topic, len(want)) {
			got = append(got, fmt.Sprintf("%s %q %d", r.Key, r.Value, r.Partition))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("written to %s is\n%q\nwant\n%q", topic, got, want)
		}
		writes += len(want)
	}
	acts := read()
	if i := slices.IndexFunc(acts, func(e audit.Entry) bool { return e.On == "dead letter 0, of posts/1/1" }); len(acts) != writes || i < 0 || acts[i].Act != "replay" || acts[i].Before != "refused: late" || acts[i].After != "written again to topic posts" {
		t.Errorf("%d letters are written, and written down is %+v", writes, acts)
	}
	for what, offsets := range map[string][]int64{"before the first": {-1, 1}, "the end": {1, int64(len(letters))}} {
		if _, err := replay("", false, offsets...); refusal(err) != string(millrace.ReasonUnknown)+" OFFSET" {
			t.Errorf("%s: %v", what, err)
		}
	}
	kafkatest.Begin(t, k, k.Topics.DeadLetters, map[int32][]byte{0: []byte("kept")})(kgo.TryCommit)
	produce(t, k, letterOf(k, "posts/1/1", "late", framed(t, "z", base)))
	if _, err := replay("", false, 1, int64(len(letters))+1); refusal(err) != string(millrace.ReasonUnknown)+" OFFSET" {
		t.Errorf("the end of a transaction: %v", err)
	}
	if resp, err := replay("", false, int64(len(letters))+2); err != nil || resp.Letters[0].Id != "z" {
		t.Errorf("behind it: %v, %v", resp, err)
	}
	if err := s.cfg.Audit.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := replay("", true, 0); err == nil {
		t.Error("a letter is replayed, and nobody has written that down")
	}
}

// Where partitioners have said nothing, nothing is deleted or replayed.
func TestNobodyReads(t *testing.T) {
	s, _ := openNode(t)
	k := beside(t, s, nil)
	produce(t, k, letterOf(k, "posts/1/1", "late", framed(t, "a", base)))
	resp, err := s.ReplayDeadLetters(t.Context(), &nodev1.ReplayDeadLettersRequest{Offsets: []int64{0}})
	if err != nil || !strings.Contains(resp.Letters[0].Refused, "no partitioner has said") {
		t.Errorf("%v, %v", resp, err)
	}
	if _, err := s.DeleteRecords(t.Context(), &nodev1.DeleteRecordsRequest{Tombstones: []*nodev1.Tombstone{{Id: "a"}}}); refusal(err) != string(millrace.ReasonUnavailable)+" topic" {
		t.Errorf("%v", err)
	}
}

// Tombstones are checked, written down, and written to the topic of content, each where its
// record was.
func TestRecordsAreDeleted(t *testing.T) {
	s, _ := openNode(t)
	read := audited(t, s)
	k := beside(t, s, map[string]string{"one": `"kinds":{"posts":"content","facts":"features"}`})
	good := func(id string) *nodev1.Tombstone {
		return &nodev1.Tombstone{Id: id, Type: "post", Entities: []string{"member:1", "topic:a"}, Version: 1 << 60, TimeMs: base}
	}
	for want, change := range map[string]func(*nodev1.DeleteRecordsRequest){
		"":                        func(*nodev1.DeleteRecordsRequest) {},
		"INVALID_ARGUMENT id":     func(r *nodev1.DeleteRecordsRequest) { r.Tombstones[1].Id = "" },
		"INVALID_ARGUMENT entity": func(r *nodev1.DeleteRecordsRequest) { r.Tombstones[1].Entities = nil },
		"INVALID_ARGUMENT tombstones": func(r *nodev1.DeleteRecordsRequest) {
			r.Tombstones[1].TimeMs = time.Now().Add(25 * time.Hour).UnixMilli()
		},
		"INVALID_ARGUMENT topic": func(r *nodev1.DeleteRecordsRequest) { r.Topic = "facts" },
	} {
		req := &nodev1.DeleteRecordsRequest{Tombstones: []*nodev1.Tombstone{good("a"), good("b"), good("c"), good("d")}}
		change(req)
		for _, apply := range []bool{false, true} {
			req.Apply = apply
			resp, err := s.DeleteRecords(t.Context(), req)
			if refusal(err) != want || want == "" && (resp.Topic != "posts" || resp.Records != 4) {
				t.Errorf("%q: %v, %v", want, resp, err)
			}
			if n := len(read()); n > 0 && (want != "" || !apply) && n != 4 {
				t.Errorf("%q: written down is %v", want, read())
			}
		}
	}
	entries := consume(t, k, "posts", 4)
	for i, r := range entries {
		id := string(rune('a' + i))
		f, err := schemas.Unframe(r.Value)
		if err != nil || f.Fingerprint != schemas.Tombstone().Fingerprint() {
			t.Fatal(f, err)
		}
		e, err := schemas.Tombstone().Envelope(f.Body)
		if err != nil || string(r.Key) != id || uint64(r.Partition) != partition.Hash(millrace.Entity(id))%3 || string(e.Record.ID) != id || e.Entity != "member:1" || !slices.Equal(e.About, []millrace.Entity{"topic:a"}) || e.Type != "post" || e.Record.Version != 1<<60 || int64(e.Record.Time) != base || !e.Record.Deleted {
			t.Errorf("the tombstone of %s is %q to %d: %+v, %v", id, r.Key, r.Partition, e, err)
		}
	}
	if len(entries) != 4 {
		t.Errorf("%d tombstones are written", len(entries))
	}
	published := consume(t, k, k.Topics.Schemas, 1)
	if string(published[0].Key) != schemas.Tombstone().Fingerprint().String() {
		t.Errorf("published is the schema %s", published[0].Key)
	}
	acts := read()
	if len(acts) != 4 || acts[0].Act != "delete" || acts[0].Who != "anybody" || !strings.Contains(acts[0].On, `record "a" of type post in the timelines of ["member:1" "topic:a"]`) || acts[0].Before != "not there" || !strings.Contains(acts[0].After, "hidden up to version 1152921504606846976, by a tombstone in topic posts") {
		t.Errorf("written down is %+v", acts)
	}
}

// A Kafka that answers no request of some kind fails every call that needs it; none says that
// it is done, or that there is nothing.
func TestAKafkaThatFails(t *testing.T) {
	s, _ := openNode(t)
	fake, k := kafkatest.Controlled(t)
	s.cfg.Brokers, s.cfg.Topics = k.Brokers, k.Topics
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(follow.Put(t.Context(), k.Brokers, k.Topics.Progress, "one", fmt.Appendf(nil, `{"instance":"i","at_ms":%d,"topics":{},"kinds":{"posts":"content"}}`, time.Now().UnixMilli())))
	out := kafka.ToStream(k.Topics.Timeline, "member:1", framed(t, "a", base), kafka.Source{Topic: "posts"})
	produce(t, k, letterOf(k, "posts/1/1", "late", framed(t, "a", base)), letterOf(k, "posts/1/2", "late", framed(t, "b", base)), out.Record())
	calls := map[string]func(context.Context) error{
		"history": func(ctx context.Context) error {
			return s.ReadHistory(&nodev1.ReadHistoryRequest{Entity: "member:1"}, &sent[nodev1.ReadHistoryResponse]{ctx: ctx})
		},
		"count": func(ctx context.Context) error {
			_, err := s.CountDeadLetters(ctx, &nodev1.CountDeadLettersRequest{SinceMs: 1})
			return err
		},
		"count from": func(ctx context.Context) error {
			_, err := s.CountDeadLetters(ctx, &nodev1.CountDeadLettersRequest{From: new(int64)})
			return err
		},
		"replay": func(ctx context.Context) error {
			_, err := s.ReplayDeadLetters(ctx, &nodev1.ReplayDeadLettersRequest{Offsets: []int64{0, 1}, Apply: true})
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := s.DeleteRecords(ctx, &nodev1.DeleteRecordsRequest{Tombstones: []*nodev1.Tombstone{{Id: "a", Type: "post", Entities: []string{"member:1"}, TimeMs: base}}, Apply: true})
			return err
		},
		"inputs": func(ctx context.Context) error { _, err := s.inputs(ctx); return err },
		"publish": func(ctx context.Context) error {
			return s.publish(ctx, "posts", []*nodev1.Tombstone{{Id: "a"}}, make([][]byte, 1))
		},
	}
	kafkatest.EachRequestMatters(t, fake, calls)
}
