package operate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
)

// What is kept as a proof names each record that was not found, and says where an earlier
// version was not looked for.
func TestDeletionNamesWhatIsNowhere(t *testing.T) {
	found := &sightings{spots: []spot{{"post:1", "member:1", "post"}, {"post:2", "member:2", "post"}}}
	wanted := []*nodev1.WantedRecord{{Id: "post:1", Entity: "member:1"}, {Id: "post:2"}, {Id: "post:1", Entity: "member:2"}, {Id: "gone"}, {Id: "gone"}}
	none := found.nowhere(wanted)
	if !slices.Equal(none, []wantedShown{{"post:1", "member:2"}, {"gone", ""}}) {
		t.Errorf("nowhere are %v", none)
	}
	text := func(s deletionShown) string {
		var out strings.Builder
		s.writeLeft(&out)
		return out.String()
	}
	if got := text(deletionShown{NotFound: none}); !strings.Contains(got, `2 of the records named: "post:1" of "member:2", "gone"`+"\n") || !strings.Contains(got, "--everywhere") {
		t.Errorf("printed %s", got)
	}
	if got := text(deletionShown{Everywhere: true}); got != "" {
		t.Errorf("of all, in all timelines, it prints %s", got)
	}
	for i := range 5 {
		none = append(none, wantedShown{ID: fmt.Sprint("more:", i)})
	}
	if got := text(deletionShown{NotFound: none}); !strings.Contains(got, "7 of the records") || !strings.Contains(got, "and 2 more, which -o json names") || strings.Contains(got, "more:3") {
		t.Errorf("of many it prints %s", got)
	}
}

// unhurried is a node that shows a record once, and is silent then.
type unhurried struct {
	nodev1.UnimplementedAdminServiceServer
	asked atomic.Int32
}

func (u *unhurried) FindRecords(_ *nodev1.FindRecordsRequest, stream nodev1.AdminService_FindRecordsServer) error {
	if u.asked.Add(1) > 1 {
		<-stream.Context().Done()
		return rpcerr.Status(stream.Context().Err())
	}
	return stream.Send(&nodev1.FindRecordsResponse{
		Found:      []*nodev1.FoundRecord{{Entity: "member:1", Record: &nodev1.TimelineRecord{Id: "post:1", Type: "post", InStore: true}}},
		Partitions: []int32{int32(partition.Of("member:1"))},
	})
}

// Who waited in vain hears what for, and not that the last look was cut off.
func TestDeletionSaysWhatItWaitedFor(t *testing.T) {
	d := deletingAt(t, &unhurried{})
	before := &sightings{looked: map[millrace.NodeID]map[millrace.Partition]bool{"n1": {partition.Of("member:1"): true}}}
	for _, want := range []string{`n1 has not applied the tombstone of "post:1" in "member:1"`, "n1: the node gave no answer in time"} {
		waiting, cancel := context.WithTimeout(t.Context(), d.patience)
		_, err := d.await(waiting, before, []*nodev1.Tombstone{{Id: "post:1", Type: "post", Entities: []string{"member:1"}, Version: 1}})
		cancel()
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != "wait" || !strings.HasPrefix(e.Detail, "the tombstones are in the log, and after 500ms "+want) || strings.Contains(err.Error(), "entities") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// deletingAt returns a deletion in a cluster of one node.
func deletingAt(t *testing.T, node nodev1.AdminServiceServer) deleting {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	nodev1.RegisterAdminServiceServer(s, node)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	conns := clusters.ConnsBy(grpc.WithTransportCredentials(insecure.NewCredentials()))
	t.Cleanup(conns.Close)
	var a topology.Assignment
	a.Replicas[partition.Of("member:1")] = []millrace.NodeID{"n1"}
	m := topology.NewMap(a, []topology.Node{{ID: "n1", Addr: l.Addr().String()}}, nil)
	return deleting{patience: 500 * time.Millisecond, o: &clusters.Operating{Look: clusters.Look{Map: m}, Conns: conns}}
}

// strict is a node that has deleted every record, and takes as many at once as nodes do.
type strict struct {
	nodev1.UnimplementedAdminServiceServer
}

func (strict) FindRecords(req *nodev1.FindRecordsRequest, stream nodev1.AdminService_FindRecordsServer) error {
	if n := len(req.Wanted); n == 0 || n > 10_000 {
		return rpcerr.Status(millrace.Invalid("id", fmt.Sprintf("%d records are wanted", n), "name fewer"))
	}
	m := &nodev1.FindRecordsResponse{}
	for _, w := range req.Wanted {
		m.Found = append(m.Found, &nodev1.FoundRecord{Entity: w.Entity, Record: &nodev1.TimelineRecord{Id: w.Id, Type: "post", Deleted: true, Version: 1}})
		m.Partitions = append(m.Partitions, int32(partition.Of(millrace.Entity(w.Entity))))
	}
	return stream.Send(m)
}

// A deletion of a file as large as may be, of records in several timelines each, ends.
func TestDeletionInManyTimelines(t *testing.T) {
	d := deletingAt(t, strict{})
	d.patience = time.Minute
	before := &sightings{looked: map[millrace.NodeID]map[millrace.Partition]bool{"n1": {}}}
	var tombstones []*nodev1.Tombstone
	for i := range maxDeleted {
		tomb := &nodev1.Tombstone{Id: fmt.Sprint("post:", i), Type: "post", Version: 1, Entities: []string{fmt.Sprint("member:", i), fmt.Sprint("topic:", i)}}
		for _, e := range tomb.Entities {
			before.looked["n1"][partition.Of(millrace.Entity(e))] = true
		}
		tombstones = append(tombstones, tomb)
	}
	waiting, cancel := context.WithTimeout(t.Context(), d.patience)
	defer cancel()
	after, err := d.await(waiting, before, tombstones)
	if err != nil || len(after.spots) != 2*maxDeleted {
		t.Errorf("%v", err)
	}
}
