package millrace

import (
	"cmp"
	"math"
	"strings"
)

// Rank is what decides a candidate's place in an answer.
type Rank struct {
	Score float64
	Time  Time
	ID    RecordID
	Timeline
}

// Compare returns a negative number if a is better than b, positive if worse, 0 if equal: by
// score descending with NaN last, time descending, id ascending by bytes. A record that is
// in two of the timelines asked for is two candidates; the timeline's entity and type,
// ascending, decide between them. So the order is total, and the same however partitions
// are spread over nodes.
func (a Rank) Compare(b Rank) int {
	if c := CompareScores(a.Score, b.Score); c != 0 {
		return c
	}
	if c := cmp.Compare(b.Time, a.Time); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.ID), string(b.ID)); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.Entity), string(b.Entity)); c != 0 {
		return c
	}
	return strings.Compare(string(a.Type), string(b.Type))
}

// CompareScores returns -1 if a is the higher score, 1 if b is, 0 if they are equal. NaN comes
// last. Zeros of either sign are equal.
func CompareScores(a, b float64) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	case a == b:
		return 0
	}
	an, bn := math.IsNaN(a), math.IsNaN(b)
	switch {
	case an && bn:
		return 0
	case an:
		return 1
	}
	return -1
}
