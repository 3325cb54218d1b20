package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
)

// printable is the beginning of a text without what a terminal would obey.
func printable(s string) string {
	const most = 512
	cut := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s[:min(len(s), most)])
	if len(s) > most {
		cut += "..."
	}
	return cut
}

func shortTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func ago(at time.Time) string {
	if time.Until(at) > time.Minute {
		return at.UTC().Format(time.DateTime) + "Z, in the future"
	}
	return at.UTC().Format(time.DateTime) + "Z, " + time.Since(at).Round(time.Second).String() + " ago"
}

func numbers(s cluster.Set) []int {
	out := []int{}
	for p := range s.All() {
		out = append(out, int(p))
	}
	return out
}

// faults is how many there are, in words.
func faults(n int) string {
	if n == 1 {
		return "1 fault"
	}
	return fmt.Sprintf("%d faults", n)
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func faultText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// writeActs prints what was done, an act a line.
func writeActs(w io.Writer, all []audit.Entry) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHEN\tWHO\tACT\tON\tBEFORE\tAFTER")
	for _, e := range all {
		after := e.After
		if e.Fault != "" {
			after = "FAILED: " + e.Fault
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", shortTime(e.Time), printable(e.Who), e.Act, printable(e.On), printable(e.Before), printable(after))
	}
	return t.Flush()
}
