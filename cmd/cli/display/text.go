package display

import (
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/line"
)

// Printable returns a text within one line: its first 512 bytes, and "..." if there are
// more. Characters that end a line or steer a terminal become numbers.
func Printable(s string) string {
	const most = 512
	if len(s) > most {
		return line.Of(s[:most]) + "..."
	}
	return line.Of(s)
}

// ShortTime returns a time to the second, in UTC, by RFC 3339.
func ShortTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Ago says when something was, and how long ago. A time more than a minute ahead is said
// to be in the future; clocks may differ by less.
func Ago(at time.Time) string {
	if time.Until(at) > time.Minute {
		return at.UTC().Format(time.DateTime) + "Z, in the future"
	}
	return at.UTC().Format(time.DateTime) + "Z, " + time.Since(at).Round(time.Second).String() + " ago"
}

// Numbers returns the partitions of a set as numbers, never nil.
func Numbers(s topology.Set) []int {
	out := []int{}
	for p := range s.All() {
		out = append(out, int(p))
	}
	return out
}

// Faults says how many faults there are, such as "2 faults".
func Faults(n int) string {
	if n == 1 {
		return "1 fault"
	}
	return fmt.Sprintf("%d faults", n)
}

// Joined returns two sentences as one, with a semicolon between them. Either may be empty.
func Joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// FaultText returns the text of an error; "" for nil.
func FaultText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// WriteActs prints entries of the audit trail as a table, one a line.
func WriteActs(w io.Writer, all []audit.Entry) error {
	t := NewTable(w)
	t.Printf("WHEN\tWHO\tACT\tON\tBEFORE\tAFTER\n")
	for _, e := range all {
		after := e.After
		if e.Fault != "" {
			after = "FAILED: " + e.Fault
		}
		t.Printf("%s\t%s\t%s\t%s\t%s\t%s\n", ShortTime(e.Time), Printable(e.Who), Printable(e.Act), Printable(e.On), Printable(e.Before), Printable(after))
	}
	return t.Flush()
}
