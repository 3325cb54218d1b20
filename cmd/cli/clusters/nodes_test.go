package clusters

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/maptest"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/rpcerr"
)

// A node that does not answer holds nobody up beyond what they wait, and whether it did what
// it was told is not known; what it refuses is told as it says.
func TestAnActWithoutAnAnswerIsNotKnown(t *testing.T) {
	frozen := func(ctx context.Context) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	stuck := func(ctx context.Context) error { // in Kafka, until its own time is over
		<-ctx.Done()
		return rpcerr.Status(ctx.Err())
	}
	killed := func(context.Context) error { return status.Error(codes.Unavailable, "error reading from server: EOF") }
	refusing := func(context.Context) error {
		return rpcerr.Status(&millrace.Error{Reason: millrace.ReasonUnavailable, Field: "partition", Detail: "it is stopping", WayOut: "ask another"})
	}
	const unknown = "it is not known whether it was done"
	for name, c := range map[string]struct {
		node   func(context.Context) error
		apply  bool
		detail string // within it
		way    string
	}{
		"frozen":         {frozen, true, unknown, "without --apply"},
		"stuck":          {stuck, true, unknown, "audit log"},
		"killed":         {killed, true, unknown, "audit log"},
		"stuck, shown":   {stuck, false, "within 1m0s; nothing was done", "millrace doctor"},
		"killed, shown":  {killed, false, "EOF; nothing was done", "millrace doctor"},
		"refused":        {refusing, true, "it is stopping", "ask another"},
		"refused, shown": {refusing, false, "it is stopping", "ask another"},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err := Act(ctx, time.Minute, func(ctx context.Context, _ *nodev1.DropCacheRequest, _ ...grpc.CallOption) (*nodev1.DropCacheResponse, error) {
				return nil, c.node(ctx)
			}, &nodev1.DropCacheRequest{Apply: c.apply})
			e, _ := errors.AsType[*millrace.Error](err)
			if e == nil || !strings.Contains(e.Detail, c.detail) || !strings.Contains(e.WayOut, c.way) || time.Since(began) > time.Minute+answersWithin {
				t.Errorf("%s: after %s: %v", name, time.Since(began), err)
			}
		})
	}
}

// A node that is late is told as that, and its refusals as it says.
func TestALateNodeIsToldAsThat(t *testing.T) {
	invalid := millrace.Invalid("id", "it is none", "name another")
	for _, of := range []error{status.FromContextError(context.DeadlineExceeded).Err(), rpcerr.Status(context.DeadlineExceeded), rpcerr.Status(invalid)} {
		_, asked := Ask(t.Context(), func(context.Context, *nodev1.ReadStateRequest, ...grpc.CallOption) (*nodev1.ReadStateResponse, error) {
			return nil, of
		}, nil)
		received := Receive[*nodev1.ReadStateResponse](nil, of, nil)
		want := "the node gave no answer in time; millrace doctor says what does not answer"
		if status.Code(of) != codes.DeadlineExceeded {
			want = invalid.Error()
		}
		if fmt.Sprint(asked) != want || fmt.Sprint(received) != want {
			t.Errorf("%v: asked, %v; received, %v", of, asked, received)
		}
	}
}

// Only who is ready and not behind takes a node's place, of what it hosts itself.
func TestWhoIsBehindTakesNobodysPlace(t *testing.T) {
	var a topology.Assignment
	for p := range a.Replicas {
		a.Replicas[p] = []millrace.NodeID{"n1", "n2"}
	}
	a.Replicas[9] = []millrace.NodeID{"n1"}
	var behind, none topology.Set
	behind.Add(7)
	m := topology.NewMap(a, []topology.Node{{ID: "n1", Addr: "a:1"}, {ID: "n2", Addr: "a:2"}}, map[millrace.NodeID]topology.Set{"n1": topology.All(), "n2": topology.All()})
	m = maptest.WithLag(t, m, "n2", topology.Lag{Behind: behind})
	for id, want := range map[millrace.NodeID]string{"n1": "7,9", "n2": none.Ranges(), "n3": none.Ranges()} {
		if got := Alone(m, id); got.Ranges() != want {
			t.Errorf("of %s nobody else serves %q, not %q", id, got.Ranges(), want)
		}
	}
}
