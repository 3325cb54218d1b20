package minicluster

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// TestChangesEqualTheOracle edits, moves, deletes and repeats records, and asks
// between the rounds, so that caches are warm when their records change.
func TestChangesEqualTheOracle(t *testing.T) {
	const rounds = 4
	ctx := t.Context()
	c, err := Start(ctx, Config{Dir: t.TempDir(), Feeds: feedsOfAll()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	wait, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := c.WaitReady(wait); err != nil {
		t.Fatal(err)
	}
	// Questions ask for features of entities, so that somebody must know them.
	if _, err := c.Produce(wait, c.ContentTopic(), schemas.Features(), each(nil)); err != nil {
		t.Fatal(err)
	}
	truth, lines := oracle.New(), changes(rand.New(rand.NewPCG(1, 2)))
	for round := range rounds {
		part := lines[round*len(lines)/rounds : (round+1)*len(lines)/rounds]
		for _, line := range part {
			if err := truth.Load(schemas.Activity(), line); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		if _, err := c.Produce(wait, c.ContentTopic(), schemas.Activity(), each(part)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.WaitReady(wait), c.WaitIndexed(wait)); err != nil {
			t.Fatal(err)
		}
		questions := ask(t, truth, 100)
		compare(t, c, questions, "first")
		compare(t, c, questions, "warm")
	}
}

func each(lines [][]byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, line := range lines {
			if !yield(line, nil) {
				return
			}
		}
	}
}

// changes returns bundled records in an order of their own, each with up to
// four further lines of the same id: newer and older versions at other times,
// tombstones before and after, of the record's own version too, and the same
// line again. Lines of one id and version say the same but for the tombstone,
// since a content topic keeps no order between its partitions.
func changes(r *rand.Rand) [][]byte {
	var records []map[string]any
	for line := range sample.Records() {
		var rec map[string]any
		if err := json.Unmarshal(line, &rec); err != nil {
			panic(err) // the sample's own tests read every line
		}
		records = append(records, rec)
	}
	var lines [][]byte
	for _, i := range r.Perm(len(records))[:2000] {
		rec := records[i]
		at, err := time.Parse(time.RFC3339, rec["created_at"].(string))
		if err != nil {
			panic(err)
		}
		moves := millrace.Time(r.IntN(2) * (r.IntN(7_200_000) - 3_600_000))
		for range 1 + r.IntN(5) {
			version := r.IntN(4)
			rec["version"], rec["likes"] = version, (version*7+i)%5
			rec["created_at"] = (millrace.TimeOf(at) + moves*millrace.Time(version)).String()
			rec["deleted"] = r.IntN(5) == 0
			line, err := json.Marshal(rec)
			if err != nil {
				panic(err) // it came from JSON
			}
			lines = append(lines, line)
		}
	}
	// Neighbours trade places, so that versions come out of order and far
	// apart as well as close together.
	for i := range lines {
		j := min(len(lines)-1, i+r.IntN(1+r.IntN(len(lines))))
		lines[i], lines[j] = lines[j], lines[i]
	}
	return lines
}
