package indexnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
)

// reading is the stream of a caller that reads a partition.
type reading struct {
	silent
	asks []*nodev1.ReadPartitionRequest
	all  []*nodev1.ReadPartitionResponse
	goes int // at which message the caller goes, counted from 1; 0: it stays
}

func (s *reading) Recv() (*nodev1.ReadPartitionRequest, error) {
	if len(s.asks) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	next := s.asks[0]
	s.asks = s.asks[1:]
	return next, nil
}

func (s *reading) Send(m *nodev1.ReadPartitionResponse) error {
	if s.all = append(s.all, m); len(s.all) == s.goes {
		return io.ErrClosedPipe
	}
	return nil
}

// fieldOf returns the field by which a call is refused; the error itself if it is no refusal.
func fieldOf(err error) string {
	if e, is := errors.AsType[*millrace.Error](rpcerr.FromStatus(err)); is {
		return e.Field
	}
	return fmt.Sprint(err)
}

// What is asked of a partition or a stream that there is not is refused.
func TestWhatIsNotThereIsNotCompared(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	ctx := t.Context()
	for what, c := range map[string]struct {
		call func(p, s int32) error
		s    bool // it names a stream
	}{
		"digests": {func(p, _ int32) error {
			_, err := n.Digests(ctx, &nodev1.DigestsRequest{Partitions: []int32{p}})
			return err
		}, false},
		"check": {func(p, _ int32) error {
			_, err := n.CheckPartition(ctx, &nodev1.CheckPartitionRequest{Partition: p})
			return err
		}, false},
		"witness": {func(p, s int32) error {
			_, err := n.WitnessPartition(ctx, &nodev1.WitnessPartitionRequest{Partition: p, Stream: s})
			return err
		}, true},
		"condemn": {func(p, s int32) error {
			_, err := n.CondemnPartition(ctx, &nodev1.CondemnPartitionRequest{Partition: p, Stream: s})
			return err
		}, true},
	} {
		for _, p := range []int32{-1, partition.Count} {
			if got := fieldOf(c.call(p, 0)); got != "partition" {
				t.Errorf("%s of partition %d: %s", what, p, got)
			}
		}
		if got := fieldOf(c.call(0, 2)); c.s && got != "stream" || !c.s && got != "<nil>" {
			t.Errorf("%s of stream 2: %s", what, got)
		}
	}
	for i, want := range map[int32]string{0: "<nil>", 1: "<nil>", 2: "stream", -1: "stream"} {
		if s, err := streamOf(i); fieldOf(err) != want || err == nil && s != kafka.Stream(i) {
			t.Errorf("stream %d: %v, %v", i, s, err)
		}
	}
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if resp, err := n.WitnessPartition(soon, &nodev1.WitnessPartitionRequest{}); err == nil || resp != nil || len(n.examining) > 0 {
		t.Errorf("without a log a witness is %v: %v", resp, err)
	}
	if _, err := n.Digests(ctx, &nodev1.DigestsRequest{Partitions: make([]int32, partition.Count+1)}); fieldOf(err) != "partitions" {
		t.Errorf("digests of more partitions than there are: %v", err)
	}
	if _, err := n.GetSchema(ctx, &nodev1.GetSchemaRequest{Fingerprint: 7}); fieldOf(err) != "fingerprint" {
		t.Errorf("a schema that is not there: %v", err)
	}
	if err := n.ReadPartition(&reading{silent: silent{ctx: ctx}}); err == nil {
		t.Error("a caller that says nothing reads a partition")
	}
	none, err := Open(n.cfgIn(t))
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if resp, err := none.Digests(ctx, &nodev1.DigestsRequest{}); err != nil || len(resp.Trails) > 0 {
		t.Errorf("of a node that has nothing: %v, %v", resp, err)
	}
	if _, err := none.CheckPartition(ctx, &nodev1.CheckPartitionRequest{Partition: 1}); fieldOf(err) != "partition" {
		t.Errorf("a partition that is elsewhere is checked: %v", err)
	}
}

// cfgIn returns the node's configuration for another one.
func (n *Node) cfgIn(t *testing.T) Config {
	c := n.cfg
	c.Dir, c.Store = t.TempDir(), store.Options{FS: vfs.NewMem(), FlushEvery: -1}
	return c
}

// A node tells the digests that a replica had, by stream.
func TestDigestsAreTold(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	nodetest.Lines(t, h)
	p := partition.Of("member:1")
	all, err := n.Digests(t.Context(), &nodev1.DigestsRequest{})
	if err != nil || len(all.Trails) != partition.Count {
		t.Fatalf("%d trails: %v", len(all.GetTrails()), err)
	}
	one, err := n.Digests(t.Context(), &nodev1.DigestsRequest{Partitions: []int32{int32(p)}})
	if err != nil || len(one.Trails) != 1 {
		t.Fatalf("%v: %v", one, err)
	}
	got, want := one.Trails[0], h.Of(p).Trail()
	if got.Partition != int32(p) || !got.Answers || !slices.Equal(got.ContentAt, []int64{0, 1, 2, 3}) || !slices.Equal(got.FeaturesAt, []int64{0, 1, 2}) {
		t.Errorf("told is %v", got)
	}
	for s, digests := range [][]uint64{got.Content, got.Features} {
		for i, x := range want[s] {
			if digests[i] != x.Digest {
				t.Errorf("%v of stream %d, at %d %x", digests, s, x.At, x.Digest)
			}
		}
	}
	if fmt.Sprint(all.Trails[p]) != fmt.Sprint(got) {
		t.Errorf("among all it tells %v", all.Trails[p])
	}
	h.Condemn(p, replica.Why{Reason: replica.Corrupt, Detail: "a bit"})
	if one, err := n.Digests(t.Context(), &nodev1.DigestsRequest{Partitions: []int32{int32(p)}}); err != nil || one.Trails[0].Answers {
		t.Errorf("of one that is quarantined: %v, %v", one, err)
	}
}

// All rows of a partition are sent, in messages of so many, and the store lets them go.
func TestAllRowsAreSent(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	const records = 2*sentRows + 7
	nodetest.Members(t, h, 1, records)
	nodetest.Feature(t, h, "member:0", 9)
	p := partition.Of("member:0")
	send := func(goes int) (*reading, error) {
		c, err := n.store.Contents(p)
		if err != nil {
			t.Fatal(err)
		}
		s := &reading{goes: goes}
		return s, errors.Join(sendRows(t.Context(), c, s), c.Close())
	}
	whole, err := send(0)
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int
	var rows []*nodev1.Row
	for _, m := range whole.all {
		sizes, rows = append(sizes, len(m.Rows)), append(rows, m.Rows...)
	}
	if !slices.Equal(sizes, []int{sentRows, sentRows, 8}) {
		t.Errorf("messages have %v rows", sizes)
	}
	c, err := n.store.Contents(p)
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for row, err := range c.Rows() {
		want := &nodev1.Row{Key: row.Key, Entity: string(row.Timeline.Entity), Type: string(row.Timeline.Type), Id: string(row.ID), TimeMs: int64(row.Time), Version: row.Version, Deleted: row.Deleted, Schema: uint64(row.Schema), Sum: row.Sum}
		if err != nil || rows[i].String() != want.String() {
			t.Fatalf("row %d is sent as %v, not %v: %v", i, rows[i], want, err)
		}
		i++
	}
	if err := c.Close(); err != nil || i != len(rows) {
		t.Errorf("%d rows of %d are sent: %v", len(rows), i, err)
	}
	for goes := range whole.all {
		if s, err := send(goes + 1); !errors.Is(err, io.ErrClosedPipe) || len(s.all) != goes+1 {
			t.Errorf("a caller that goes at message %d is sent %d: %v", goes+1, len(s.all), err)
		}
	}
	gone, goes := context.WithCancel(t.Context())
	goes()
	if c, err = n.store.Contents(p); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sendRows(gone, c, &reading{}), c.Close()); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
}

// A check counts what a partition has. Damage that it finds is told, written down, and takes
// the replica out of service.
func TestAPartitionIsChecked(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	nodetest.Lines(t, h)
	p := partition.Of("member:1")
	file := filepath.Join(t.TempDir(), "audit")
	var err error
	if n.cfg.Audit, err = audit.Open(file); err != nil {
		t.Fatal(err)
	}
	check := func() (*nodev1.CheckPartitionResponse, error) {
		return n.CheckPartition(t.Context(), &nodev1.CheckPartitionRequest{Partition: int32(p)})
	}
	if resp, err := check(); err != nil || resp.Timelines != 2 || resp.Records != 3 || resp.Features != 2 || resp.Fault != "" {
		t.Fatalf("%v, %v", resp, err)
	}
	if err := n.store.Quarantine(p, errors.New("a flipped bit")); err != nil {
		t.Fatal(err)
	}
	resp, err := check()
	text, _ := os.ReadFile(file)
	if err != nil || !strings.Contains(resp.Fault, "a flipped bit") || h.Of(p).State() != replica.Quarantined {
		t.Errorf("%v, %v; it is %s", resp, err, h.Of(p).State())
	}
	if want := fmt.Sprintf(`"who":"anybody","act":"check","on":"partition %d of test","before":"ready","after":"quarantined made anew: `, p); strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), want) {
		t.Errorf("written down is %s", text)
	}
	nodetest.Serve(h)
	if err := n.cfg.Audit.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := check(); err == nil || h.Of(p).State() != replica.Ready {
		t.Errorf("it is taken out, and nobody has written that down: %v", err)
	}
	if err := n.countPartition(t.Context(), p); !errors.Is(err, store.ErrCorrupt) || h.Of(p).State() != replica.Quarantined {
		t.Errorf("counting says %v, and it is %s", err, h.Of(p).State())
	}
	gone, goes := context.WithCancel(t.Context())
	goes()
	n.examining <- struct{}{}
	if _, err := n.CheckPartition(gone, &nodev1.CheckPartitionRequest{Partition: int32(p)}); err == nil {
		t.Error("a caller that goes while it waits is answered")
	}
	if err := n.countPartition(gone, p); !errors.Is(err, context.Canceled) {
		t.Errorf("counting that is given up: %v", err)
	}
	if len(n.examining) != 1 {
		t.Error("the turn of another is taken")
	}
}

// A replica is condemned by a verdict that fits it alone; what cannot be kept of the
// difference is told, and does not keep it in service.
func TestAVerdictThatFits(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	nodetest.Lines(t, h)
	p := partition.Of("member:1")
	file := filepath.Join(t.TempDir(), "audit")
	var err error
	if n.cfg.Audit, err = audit.Open(file); err != nil {
		t.Fatal(err)
	}
	trail := h.Of(p).Trail()[kafka.Timeline]
	at := trail[len(trail)-1]
	verdict := func() *nodev1.CondemnPartitionRequest {
		return &nodev1.CondemnPartitionRequest{Partition: int32(p), Offset: int64(at.At), Digest: at.Digest, Expected: at.Digest + 1, Agreed: -1, Peer: "other", PeerAddr: "127.0.0.1:1"}
	}
	for what, change := range map[string]func(*nodev1.CondemnPartitionRequest){
		"a digest that it never had":     func(r *nodev1.CondemnPartitionRequest) { r.Digest += 5 },
		"the digest that it should have": func(r *nodev1.CondemnPartitionRequest) { r.Expected = r.Digest },
		"an offset it has not passed":    func(r *nodev1.CondemnPartitionRequest) { r.Offset++ },
		"another stream":                 func(r *nodev1.CondemnPartitionRequest) { r.Stream = 1 },
	} {
		req := verdict()
		change(req)
		if _, err := n.CondemnPartition(t.Context(), req); fieldOf(err) != "partition" || h.Of(p).State() != replica.Ready {
			t.Errorf("%s: %v, and it is %s", what, err, h.Of(p).State())
		}
	}
	if text, err := os.ReadFile(file); err != nil || len(text) > 0 {
		t.Errorf("written down is %s: %v", text, err)
	}
	n.addr.Store("127.0.0.1:1")
	resp, err := n.CondemnPartition(t.Context(), verdict())
	text, _ := os.ReadFile(file)
	why, _ := h.Of(p).Why()
	if err != nil || resp.Kept != "" || resp.NotKept == "" || h.Of(p).State() != replica.Quarantined || why.Reason != replica.Differs {
		t.Errorf("%v, %v; it is %s for %v", resp, err, h.Of(p).State(), why)
	}
	if want := fmt.Sprintf(`"act":"condemn","on":"partition %d of test","before":"ready","after":"quarantined made anew: at 3 its digest of`, p); strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), want) {
		t.Errorf("written down is %s", text)
	}
	nodetest.Serve(h)
	if err := n.cfg.Audit.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.CondemnPartition(t.Context(), verdict()); err == nil || h.Of(p).State() != replica.Ready {
		t.Errorf("it is taken out, and nobody has written that down: %v", err)
	}
}

// Of the files that say what differs, the newest stay.
func TestTheNewestDifferencesAreKept(t *testing.T) {
	dir := t.TempDir()
	var names []string
	for i := range keptFiles + 3 {
		names = append(names, time.Unix(int64(i), 0).UTC().Format("20060102T150405")+".ndjson")
		if err := os.WriteFile(filepath.Join(dir, names[i]), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if i+1 < keptFiles-1 {
			continue
		}
		if err := keepNewest(dir); err != nil {
			t.Fatal(err)
		}
		var kept []string
		there, _ := os.ReadDir(dir)
		for _, f := range there {
			kept = append(kept, f.Name())
		}
		if !slices.Equal(kept, names[max(0, len(names)-keptFiles):]) {
			t.Errorf("of %d files stay %q", len(names), kept)
		}
	}
	if err := keepNewest(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there is tidy")
	}
}
