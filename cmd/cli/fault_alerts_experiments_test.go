//go:build linux

package cli

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/kafka"
)

// TestFaultAlertsOfExperiments does what TestFaultAlerts does with experiments under guards,
// and with a Kafka that is away.
func TestFaultAlertsOfExperiments(t *testing.T) {
	const topic, outcomes = "shown", "clicks"
	w := startWatched(t, watchedConfig{nodes: 2, coordinator: "grace: 1h\nexposures: " + topic + "\n",
		broker: fmt.Sprintf("exposures: %s\naudit: %s\naudit_topic: audits\n", topic, filepath.Join(t.TempDir(), "audit"))})
	if err := kafka.EnsureContentTopic(w.ctx, kafka.At(w.kafka), outcomes, 1, nil); err != nil {
		t.Fatal(err)
	}
	viewers, asked, err := newViewers(w)
	if err != nil {
		t.Fatal(err)
	}
	defer viewers.Close()
	w.beside = asked
	w.experiment("well", "set: {limit: 3}", "guards: {refused: 2}")
	w.normal()
	w.breaks(
		alertFault{
			"a variant shows nothing", fires{"MillraceExperimentPaused"}, nil,
			func() { w.experiment("empty", "set: {types: [none]}", "guards: {empty: 1.5}") }, func() { w.command("experiment stop empty") },
		},
		alertFault{
			"no outcomes come", fires{"MillraceOutcomesBlind"}, nil,
			func() {
				w.experiment("clicked", "set: {cap_per_entity: 1}", "guards: {fewer: {click: 0.5}}", "outcomes: {topic: "+outcomes+", actions: [click]}")
			}, func() { w.command("experiment stop clicked") },
		},
		alertFault{
			"Kafka refuses exposures", fires{"MillraceExposuresLost"}, []string{"MillraceExposuresWait"},
			func() { w.most(topic, "1") }, func() { w.most(topic, strconv.Itoa(1<<20)) },
		},
		alertFault{
			"Kafka is away", fires{"MillraceExposuresWait", "MillraceGuardsBlind", "MillraceAuditUnsent"}, []string{"MillraceKafkaFails", "MillraceIngestWaits", "MillraceNodeBehind", "MillraceAnswersOld"},
			func() {
				w.mute = true
				w.kafkaServer.Close()
				resp, err := http.Post("http://"+w.second.front+"/log?package=broker&level=INFO&for=1m", "", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Fatal(resp.Status)
				}
			}, func() { w.startKafka(t, w.kafka); w.mute = false },
		},
	)
}

// newViewers returns what asks the second broker by another viewer each time.
func newViewers(w *watched) (cl *client.Client, ask func(), err error) {
	viewers := 0
	cl, err = client.Dial(w.second.grpc)
	return cl, func() {
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		viewers++
		_, _ = cl.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: fmt.Sprint("viewer:", viewers)}, Entities: w.question.Entities}) // faults make some fail
	}, err
}

// experiment runs one with all viewers, whose second variant is other, as more says.
func (w *watched) experiment(name, other string, more ...string) {
	w.t.Helper()
	w.command("experiment define " + clitest.WriteConfig(w.t, name, `
layers: [{name: %[1]s, salt: %[1]s, unit: viewer}]
experiments:
  - name: %[1]s
    layer: %[1]s
    feeds: [recent]
    state: running
    slots: [0-9999]
    share: 10000
    variants: [{name: control, weight: 5000}, {name: other, weight: 5000, %[2]s}]
    %[3]s
`, name, other, strings.Join(more, "\n    ")))
}
