package indexnode

import (
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
)

// The gauge says how long the oldest record not applied has waited, as far as
// it has looked.
func TestLagGauge(t *testing.T) {
	g, tp, start := lagGauge{}, kafka.TopicPartition{Partition: 7}, time.Now()
	for i, c := range []struct {
		at           time.Duration
		end, applied millrace.Offset
		want         time.Duration
	}{
		{0, 100, 100, 0},
		{2, 110, 100, 0}, // 100 to 109 wait from now on
		{4, 120, 105, 2},
		{6, 130, 110, 2}, // 110 to 119 since 4
		{8, 140, 119, 4},
		{10, 150, 130, 2}, // 130 to 139 since 8
		{12, 150, 130, 4},
		{14, 150, 150, 0},
		{16, 150, 150, 0},
		{18, 160, 155, 0},
	} {
		if got := g.look(tp, c.end, c.applied, start.Add(c.at*time.Second)); got != c.want*time.Second {
			t.Errorf("step %d: %s, want %d s", i, got, c.want)
		}
	}
	if g.look(tp, 160, 160, start.Add(time.Hour)); len(g) != 0 {
		t.Errorf("remembers %v of a stream that is applied", g)
	}
}

// What a gauge remembers is bounded, and a long lag is still measured well.
func TestLagGaugeIsBounded(t *testing.T) {
	g, tp, start := lagGauge{}, kafka.TopicPartition{}, time.Now()
	const behind = 1000 // offsets, and seconds
	for i := range 10_000 {
		got := g.look(tp, millrace.Offset(i), millrace.Offset(max(0, i-behind)), start.Add(time.Duration(i)*time.Second))
		want := time.Duration(min(i, behind)) * time.Second
		if len(g[tp]) > 8*lagGrain {
			t.Fatalf("%d marks", len(g[tp]))
		}
		if i > 10 && (got > want || got < want*9/10) {
			t.Fatalf("second %d: %s, want about %s", i, got, want)
		}
	}
}

// A partition is behind from the limit on until it has half caught up.
func TestLagJudge(t *testing.T) {
	var p part
	for i, c := range []struct {
		waited time.Duration
		want   bool
	}{{6, false}, {10, false}, {11, true}, {9, true}, {5, true}, {4, false}, {9, false}} {
		if got := p.judge(c.waited*time.Second, 10*time.Second); got != c.want || (p.lag.Load() > 0) != c.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

func TestLagIsToldWhenItMatters(t *testing.T) {
	one := cluster.Lag{Behind: cluster.Set{1}, Seconds: 12}
	for _, c := range []struct {
		told, now cluster.Lag
		want      bool
	}{
		{cluster.Lag{}, cluster.Lag{}, false},
		{cluster.Lag{}, one, true},
		{one, cluster.Lag{Behind: cluster.Set{1}, Seconds: 14}, false},
		{one, cluster.Lag{Behind: cluster.Set{1}, Seconds: 20}, true},
		{one, cluster.Lag{Behind: cluster.Set{3}, Seconds: 12}, true},
		{one, cluster.Lag{}, true},
	} {
		if got := worthTelling(c.told, c.now); got != c.want {
			t.Errorf("%v after %v: %v", c.now, c.told, got)
		}
	}
}
