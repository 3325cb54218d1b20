package admin

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/nodetest"
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
