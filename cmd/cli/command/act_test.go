package command

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
)

// What is to be done is asked of somebody who is there: neither a pipe nor
// /dev/null is, and a script is told what to say.
func TestNobodyIsAsked(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, in := range map[string]io.Reader{"a pipe": strings.NewReader("y\n"), "/dev/null": null} {
		for _, yes := range []bool{false, true} {
			c := &cobra.Command{}
			c.SetContext(t.Context())
			c.SetIn(in)
			c.SetErr(io.Discard)
			ok, err := (&Act{Apply: true, Yes: yes}).Meant(c)
			e := (*millrace.Error)(nil)
			if asked := errors.As(err, &e) && e.WayOut == "add --yes"; ok != yes || asked == yes {
				t.Errorf("%s, --yes %v: %v, %v", name, yes, ok, err)
			}
		}
	}
}

// What is under way and ends without an answer may have been done.
func TestWhatIsUnderWayMayBeDone(t *testing.T) {
	for name, of := range map[string]struct {
		apply   bool
		err     error
		unknown bool
	}{
		"shown":         {false, cluster.Away(errors.New("silence")), false},
		"under way":     {true, cluster.Away(errors.New("silence")), true},
		"refused":       {true, errors.New("no"), false},
		"told already":  {true, cluster.Away(errors.New("it is not known")), false},
		"no longer led": {true, cluster.ErrNotLeader, false},
	} {
		a := Act{Apply: of.apply, Yes: true}
		c := &cobra.Command{Use: "do", SilenceErrors: true, SilenceUsage: true, RunE: func(c *cobra.Command, _ []string) error {
			_, err := a.Meant(c)
			return cmp.Or(err, of.err)
		}}
		c.SetErr(io.Discard)
		c.SetArgs(nil)
		Prepare(c)
		err := Run(t.Context(), c)
		if says := strings.Contains(err.Error(), "not known whether it was done"); says != of.unknown || !errors.Is(err, of.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What cannot be written down is not done, and what fails is written down as that.
func TestActsAreNotedFirst(t *testing.T) {
	var log []string
	note := func(fault error) func(audit.Entry) error {
		return func(e audit.Entry) error {
			log = append(log, strings.TrimSpace(e.Act+" "+e.Fault))
			return fault
		}
	}
	do := func(fault error) func() error {
		return func() error { log = append(log, "done"); return fault }
	}
	bad := errors.New("bad")
	for want, run := range map[string]func() error{
		"skip":               func() error { return Noted(note(bad), audit.Entry{Act: "skip"}, do(nil)) },
		"skip done":          func() error { return Noted(note(nil), audit.Entry{Act: "skip"}, do(nil)) },
		"skip done skip bad": func() error { return Noted(note(nil), audit.Entry{Act: "skip"}, do(bad)) },
	} {
		log = nil
		if err := run(); (err == nil) != (want == "skip done") || strings.Join(log, " ") != want {
			t.Errorf("%q, %v; want %q", log, err, want)
		}
	}
}

// A command that is told to stop before its end has failed; what runs until it is
// told to stop has not.
func TestAnInterruptedCommandFails(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for use, ends := range map[string]func(error) error{"show": func(err error) error { return err }, "role": ToldToStop} {
		c := &cobra.Command{Use: "millrace"}
		c.AddCommand(&cobra.Command{Use: use, RunE: func(c *cobra.Command, _ []string) error { return ends(c.Context().Err()) }})
		c.SetArgs([]string{use})
		Prepare(c)
		if err := Run(ctx, c); (err != nil) != (use == "show") || err != nil && err.Error() != "interrupted" {
			t.Errorf("%s: %v", use, err)
		}
	}
}
