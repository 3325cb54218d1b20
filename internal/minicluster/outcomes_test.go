package minicluster

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/schemas"
)

// A variant whose viewers click on less of what they are shown is paused, and
// what else is clicked on makes no difference.
func TestOutcomesPauseAnExperiment(t *testing.T) { testOutcomes(t, "") }

// TestOutcomesRealKafka is the same on a real Kafka.
func TestOutcomesRealKafka(t *testing.T) {
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("no real Kafka: run make kafka and set MILLRACE_KAFKA to its address")
	}
	t.Parallel()
	testOutcomes(t, addr)
}

const clicked = `
layers: [{name: shape, salt: shape, unit: viewer}]
experiments:
  - {name: each, layer: shape, feeds: [home], state: running, slots: [0-9999], share: 10000,
     variants: [{name: control, weight: 5000}, {name: one, weight: 5000, set: {cap_per_entity: 1}}], forced: {member:3: one},
     outcomes: {topic: clicks, actions: [click]}, guards: {fewer: {click: 0.9}}}
`

func testOutcomes(t *testing.T, kafkaAddr string) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c := startExposing(ctx, t, kafkaAddr, clicked, "each", "one")
	if err := kafka.EnsureContentTopic(ctx, kafka.At(c.Kafka), c.prefix+"clicks", 4, nil); err != nil {
		t.Fatal(err)
	}
	var all []string
	click := func(viewer, record string) {
		all = append(all, fmt.Sprintf(`{"id": "c%d", "actor": %q, "verb": "click", "created_at": %d, "object": %q}`, len(all), viewer, time.Now().UnixMilli(), record))
	}
	for i := range 400 {
		viewer := fmt.Sprint("viewer:", i)
		resp, err := c.client.GetFeed(ctx, c.request(viewer, ""))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Receipt.Variants["each"] == "one" { // click on much that they were not shown
			click(viewer, "another")
			click(fmt.Sprint("stranger:", i), resp.Items[0].Id)
		}
		if resp.Receipt.Variants["each"] == "control" || i%5 == 0 {
			click(viewer, resp.Items[i%len(resp.Items)].Id)
		}
	}
	if _, err := c.Produce(ctx, c.prefix+"clicks", schemas.Activity(), func(yield func([]byte, error) bool) {
		for _, line := range all {
			if !yield([]byte(line), nil) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	for {
		st, err := c.store.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		d, err := st.Find("each")
		if err != nil {
			t.Fatal(err)
		}
		if d.Experiment.State == experiment.Paused {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("it goes on")
		case <-time.After(100 * time.Millisecond):
		}
	}
	events, err := c.store.Documents.History(ctx, "tried")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(events[len(events)-1].Who)
}
