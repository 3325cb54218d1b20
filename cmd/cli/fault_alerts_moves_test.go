//go:build linux

package cli

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/partition"
)

// TestFaultAlertsOfMoves does what TestFaultAlerts does with a coordinator that repairs
// soon, and begins moves slowly.
func TestFaultAlertsOfMoves(t *testing.T) {
	w := startWatched(t, watchedConfig{nodes: 3, coordinator: "grace: 10s\nmoves_per_second: 1\n"})
	w.breaks(
		alertFault{
			"a plan is paused and forgotten", fires{"MillracePlanStandsStill"}, nil,
			func() { w.command("node drain node-3 --apply --yes"); w.command("cluster pause") },
			func() { w.command("cluster cancel --apply --yes") },
		},
		alertFault{
			"two of three nodes are gone for good", fires{"MillraceMassLoss"}, []string{"MillraceProcessDown", "MillraceNodesGone", "MillraceAnswersPartial"},
			func() { w.nodes[1].kill(); w.nodes[2].kill() }, func() { w.nodes[1].restart(); w.nodes[2].restart() },
		},
		alertFault{
			"a node is gone that no other can stand in for", fires{"MillraceNoRepair"}, []string{"MillraceProcessDown", "MillraceNodesGone"},
			func() {
				w.command("cluster assign --nodes node-1,node-2,node-3 --replicas 3 --replace")
				w.waitWhole()
				w.nodes[2].kill()
			}, w.nodes[2].restart,
		},
		alertFault{
			"a replica has a record that others lack and the log begins later", fires{"MillraceReplicasDiffer"}, nil,
			func() {
				const entity = "member:1"
				p := partition.Of(entity)
				log := kafkatest.Admin(t, kafka.At(w.kafka))
				ends, err := log.ListEndOffsets(w.ctx, w.prefix+"timeline")
				if err != nil {
					t.Fatal(err)
				}
				all := ends.Offsets()
				all.KeepFunc(func(o kadm.Offset) bool { return o.Partition == int32(p) })
				if _, err := log.DeleteRecords(w.ctx, all); err != nil {
					t.Fatal(err)
				}
				w.nodes[0].kill()
				w.slip(w.data[0], p, millrace.Timeline{Entity: entity, Type: "post"})
				w.nodes[0].restart()
			}, nil, // a person decides which one is right
		},
	)
}

// slip puts a record into a replica, as a bug might.
func (w *watched) slip(data string, p millrace.Partition, of millrace.Timeline) {
	w.t.Helper()
	s, err := store.Open(filepath.Join(data, "store"), store.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	var b store.Batch
	b.Put(p, of, millrace.Record{ID: "slipped", Time: millrace.TimeOf(time.Now().Add(-time.Hour))})
	_, err = s.Apply(&b, nil)
	if err := errors.Join(err, s.Flush(), s.Close()); err != nil {
		w.t.Fatal(err)
	}
}
