package admin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// foundStream is a stream of found records in the test's hand.
type foundStream struct {
	grpc.ServerStream
	ctx  context.Context
	send func(*nodev1.FindRecordsResponse) error
}

func (s *foundStream) Context() context.Context                 { return s.ctx }
func (s *foundStream) Send(m *nodev1.FindRecordsResponse) error { return s.send(m) }

// A caller that stops reading what is found does not hold the ingest up: no
// replica is locked while it is sent.
func TestNothingIsLockedWhileWhatIsFoundIsSent(t *testing.T) {
	s, all := openNode(t)
	nodetest.Members(t, all, 1, 2*sentRecords+1)
	of := partition.Of("member:0")
	wanted := map[string]*nodev1.FindRecordsRequest{"named": {}, "anywhere": {}}
	for i := range 2*sentRecords + 1 {
		id := fmt.Sprintf("0/%d", i)
		wanted["named"].Wanted = append(wanted["named"].Wanted, &nodev1.WantedRecord{Id: id, Entity: "member:0"})
		wanted["anywhere"].Wanted = append(wanted["anywhere"].Wanted, &nodev1.WantedRecord{Id: id})
	}
	for how, req := range wanted {
		found, messages := map[string]bool{}, 0
		err := s.FindRecords(req, &foundStream{ctx: t.Context(), send: func(m *nodev1.FindRecordsResponse) error {
			messages++
			for _, f := range m.Found {
				found[f.Record.Id] = true
			}
			return written(all.Of(of))
		}})
		if err != nil || len(found) != len(req.Wanted) || messages != 4 {
			t.Errorf("%s: %d of %d records are found, in %d messages: %v", how, len(found), len(req.Wanted), messages, err)
		}
	}
}

// written reports whether a replica can be written.
func written(r interface{ Barrier() }) error {
	free := make(chan struct{})
	go func() {
		r.Barrier()
		close(free)
	}()
	select {
	case <-free:
		return nil
	case <-time.After(5 * time.Second):
		return errors.New("the replica is locked")
	}
}

// The audit says of a deletion what the node had of the record, and not what the caller
// believes.
func TestADeletionIsAuditedWithWhatWasThere(t *testing.T) {
	s, all := openNode(t)
	nodetest.Members(t, all, 2, 2)
	if err := all.Quarantine(partition.Of("member:1"), "doubt"); err != nil {
		t.Fatal(err)
	}
	for want, to := range map[string]*nodev1.Tombstone{
		"there in 1 timelines, the newest of version 0": {Id: "0/1", Type: "post", Entities: []string{"member:0", "member:2"}},
		"not there":                     {Id: "never", Type: "post", Entities: []string{"member:0"}},
		"not there; not known of 1 tim": {Id: "0/1", Type: "post", Entities: []string{"member:1", "member:2"}},
	} {
		if got := s.deletion(t.Context(), to, "content").Before; !strings.HasPrefix(got, want) {
			t.Errorf("of %q in %q it says %q, not %q", to.Id, to.Entities, got, want)
		}
	}
}

// Tombstones that cannot be written are in the audit with their fault, each of
// them.
func TestEveryDeletionThatFailsIsToldSo(t *testing.T) {
	s, _ := openNode(t)
	file := filepath.Join(t.TempDir(), "audit")
	acts, err := audit.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer acts.Close()
	s.cfg.Audit, s.cfg.Brokers, s.cfg.Topics = acts, kafka.At("127.0.0.1:1"), kafka.Topics{}.WithDefaults()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var all []*nodev1.Tombstone
	for i := range 3 {
		all = append(all, &nodev1.Tombstone{Id: fmt.Sprint("post:", i), Entities: []string{"member:1"}, Type: "post"})
	}
	if err := s.bury(ctx, "content", all, make([][]byte, len(all))); err == nil {
		t.Fatal("tombstones are written to a Kafka that is away")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		id := fmt.Sprint("post:", i)
		done, failed := 0, 0
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, id) && strings.Contains(line, `"fault":`) {
				failed++
			} else if strings.Contains(line, id) {
				done++
			}
		}
		if done != 1 || failed != 1 {
			t.Errorf("post:%d is written down %d times, and %d times as failed:\n%s", i, done, failed, text)
		}
	}
}
