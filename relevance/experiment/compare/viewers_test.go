package compare

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/stats"
)

// viewersFor is with how many viewers an arm a change is seen, if as many do an action
// as should.
func viewersFor(seen func(viewers int64) bool) int64 {
	high := int64(1)
	for !seen(high) {
		high *= 2
	}
	low := high / 2
	for high-low > max(1, low/1000) {
		if middle := low + (high-low)/2; seen(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// About two digits of a number, with commas.
func about(n int64) string {
	ten := int64(math.Pow(10, max(0, math.Floor(math.Log10(float64(n)))-1)))
	text := fmt.Sprint((n + ten/2) / ten * ten)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// The page of experiments says how many viewers it takes until an action is seen to be
// done less, by the comparison of rates and by one of differences beside it.
func TestViewersOnThePage(t *testing.T) {
	s, err := stats.NewSequence(0.05/(effects+1), horizon)
	if err != nil {
		t.Fatal(err)
	}
	const tenth, fifth = 0.9, 0.8
	of := func(viewers int64, rate float64) (events int64, mean stats.Mean) {
		events = int64(math.Round(float64(viewers) * rate))
		rate = float64(events) / float64(viewers)
		return events, stats.Mean{N: viewers, Mean: rate, M2: float64(viewers) * rate * (1 - rate)}
	}
	rates := func(rate, left float64) string {
		return about(viewersFor(func(n int64) bool {
			control, _ := of(n, rate)
			variant, _ := of(n, rate*left)
			e, err := s.RateRatio(control, variant, 0.5)
			if err != nil {
				t.Fatal(err)
			}
			return e.Below(1)
		}))
	}
	difference := func(rate, left float64) string {
		return about(viewersFor(func(n int64) bool {
			_, control := of(n, rate)
			_, variant := of(n, rate*left)
			return s.Difference(control, variant).Below(0)
		}))
	}
	table := "| of the control's viewers do it | a fifth fewer | a tenth fewer | a tenth, by a difference |\n|---|---|---|---|\n"
	for _, percent := range []float64{1, 5, 20, 50, 80, 90} {
		rate := percent / 100
		table += fmt.Sprintf("| %g %% | %s | %s | %s |\n", percent, rates(rate, fifth), rates(rate, tenth), difference(rate, tenth))
	}
	page, err := os.ReadFile("../../../docs/experiments.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table) {
		t.Errorf("docs/experiments.md does not have\n%s", table)
	}
}
