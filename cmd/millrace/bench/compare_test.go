package bench

import (
	"io"
	"strings"
	"testing"
	"time"
)

// rounds are turns in which the machine is now and then twice as slow, for both
// sides, and head costs so many times what base does.
func rounds(cpu, p99 float64, failed int) (base, head []*turn) {
	for i := range 8 {
		slow := 1 + float64(i%3)/2
		wobble := 1 + 0.01*float64(i-4)
		of := func(x, times float64) time.Duration {
			return time.Duration(x * slow * times * float64(time.Microsecond))
		}
		base = append(base, &turn{partition: of(5, 1), ingest: of(7, 1), broker: of(300, 1), nodes: of(300, 1), p99: of(10_000, 1), asked: 1000, digests: []uint64{1}})
		head = append(head, &turn{
			partition: of(5, wobble), ingest: of(7, wobble), broker: of(300, cpu*wobble), nodes: of(300, wobble), p99: of(10_000, p99*wobble), asked: 1000, failed: failed, digests: []uint64{1},
		})
	}
	return base, head
}

func TestCompareFindsWhatIsLost(t *testing.T) {
	for _, c := range []struct {
		what     string
		cpu, p99 float64
		failed   int
		lost     []string // what is told; none: nothing is lost
	}{
		{"nothing", 1, 1, 0, nil},
		{"within the slack", 1.03, 1.2, 1, nil},
		{"faster", 0.5, 0.5, 0, nil},
		{"a broker that costs more", 1.5, 1, 0, []string{"cpu_per_query is 1.2", "cpu_per_query_broker is 1.49"}},
		{"slower answers", 1, 1.6, 0, []string{"p99 is 1.59"}},
		{"answers that do not come", 1, 1, 5, []string{"0.50 % more questions are not answered"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			cmp := &comparison{Compare: &Compare{Config: Config{Out: io.Discard}, Slack: 0.05, SlackP99: 0.25}, world: &world{label: "test"}}
			err := cmp.report(rounds(c.cpu, c.p99, c.failed))
			if len(c.lost) == 0 && err != nil {
				t.Error(err)
			}
			for _, told := range c.lost {
				if err == nil || !strings.Contains(err.Error(), told) {
					t.Errorf("%v does not tell that %s", err, told)
				}
			}
			if err != nil && len(c.lost) != strings.Count(err.Error(), "; ")+1 {
				t.Errorf("more is told than is lost: %v", err)
			}
		})
	}
	base, head := rounds(1, 1, 0)
	head[0].execution = "interpreted"
	if err := (&comparison{Compare: &Compare{Config: Config{Out: io.Discard}}, world: &world{}}).report(base, head); err == nil || !strings.Contains(err.Error(), "not comparable") {
		t.Errorf("other work is compared: %v", err)
	}
}

// Answers that differ are told, and no others.
func TestCompareTellsThatAnswersDiffer(t *testing.T) {
	for digest, differ := range map[uint64]bool{1: false, 2: true} {
		base, head := rounds(1, 1, 0)
		head[0].digests = []uint64{digest}
		var out strings.Builder
		if err := (&comparison{Compare: &Compare{Config: Config{Out: &out}, Slack: 0.05, SlackP99: 0.25}, world: &world{}}).report(base, head); err != nil {
			t.Error(err)
		}
		if strings.Contains(out.String(), "The answers differ") != differ || !strings.Contains(out.String(), "cpu_per_record_partitioned") {
			t.Errorf("digests 1 and %d: %s", digest, out.String())
		}
	}
}
