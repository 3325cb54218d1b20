package millrace

import (
	"cmp"
	"math"
	"strings"
)

// Rank is a candidate's place in an answer.
type Rank struct {
	Score float64
	Time  Time
	ID    RecordID
	Timeline
}

// Compare orders the better rank first: score descending with NaN last, time
// descending, id ascending by bytes. A record that reached two of the asked
// timelines is two candidates; the timeline's entity and type, ascending,
// decide between them, so that the order is total and every topology agrees.
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

// CompareScores orders the higher score first and NaN last. Zeros of either
// sign are equal.
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
