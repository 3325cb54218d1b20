package display

import (
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/line"
)

// Printable is the beginning of a text, within its line.
func Printable(s string) string {
	const most = 512
	if len(s) > most {
		return line.Of(s[:most]) + "..."
	}
	return line.Of(s)
}

// ShortTime is a time to the second, in UTC.
func ShortTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Ago says how long ago something was.
func Ago(at time.Time) string {
	if time.Until(at) > time.Minute {
		return at.UTC().Format(time.DateTime) + "Z, in the future"
	}
	return at.UTC().Format(time.DateTime) + "Z, " + time.Since(at).Round(time.Second).String() + " ago"
}

// Numbers are the partitions of a set, as JSON has them.
func Numbers(s topology.Set) []int {
	out := []int{}
	for p := range s.All() {
		out = append(out, int(p))
	}
	return out
}

// Faults is how many there are, in words.
func Faults(n int) string {
	if n == 1 {
		return "1 fault"
	}
	return fmt.Sprintf("%d faults", n)
}

// Joined is two sentences as one, of which each may be empty.
func Joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// FaultText is what an error says; "" for none.
func FaultText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// WriteActs prints what was done, an act a line.
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
