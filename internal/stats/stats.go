// Package stats holds the statistics that say whether a new ranking helps or
// hurts: intervals and tests that may be looked at at any time, and measures of
// rankings. Nothing reads a clock or draws random numbers; every formula names its
// source.
//
// What may be looked at at any time (Sequence, SampleRatio) keeps its promise
// over all looks together: the chance that an interval ever misses the true
// value, or that a P ever falls to alpha although there is no difference, is at
// most alpha, however often one looks and whenever one stops. What is for one
// look alone (Split.ChiSquareP, OffPolicy, SignedRank, Mean.Once) says so.
package stats

import "fmt"

// Error says what is wrong with an input, of which no statistic can be made.
type Error struct {
	Field  string // the parameter, as the caller knows it: "alpha"
	Detail string // what is wrong
	WayOut string // what to give instead
}

func (e *Error) Error() string { return e.Field + ": " + e.Detail + "; " + e.WayOut }

// refuse returns an Error whose detail is formatted.
func refuse(field, wayOut, detail string, args ...any) error {
	return &Error{Field: field, Detail: fmt.Sprintf(detail, args...), WayOut: wayOut}
}

// Interval is what a value can be, both ends included. An end is infinite if nothing is
// known yet. JSON has no infinity: code that writes an interval as JSON must replace it.
type Interval struct{ Low, High float64 }

// Contains reports whether x lies in the interval.
func (i Interval) Contains(x float64) bool { return i.Low <= x && x <= i.High }

// Above reports whether the whole interval lies above x.
func (i Interval) Above(x float64) bool { return i.Low > x }

// Below reports whether the whole interval lies below x.
func (i Interval) Below(x float64) bool { return i.High < x }

// Effect is how a variant differs from its control.
type Effect struct {
	Value float64 // the best guess; NaN while there is none
	Interval
	// P is the smallest alpha at which the interval would exclude "no difference",
	// in [0, 1]; that of QuantileDifference is only alpha or 1. It may be looked at
	// at any time. The least P of all looks so far is valid, too.
	P float64
}
