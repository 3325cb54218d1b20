package command

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/audit"
)

// Act has the flags of a command that changes something of a cluster. Such a command
// shows what it would do. With --apply it does it, after a question that --yes answers.
// The table guards in a test of package cli names the commands that act at once, and why.
type Act struct {
	Cluster  *clusters.Flags // the cluster; nil for a command on a log or a bucket alone
	Apply    bool
	Yes      bool
	Override string // the cluster's name, as --override gives it; "": not given
	Output   display.Form
	How      string // the command that does what was shown; "": this one, with --apply
}

// Flags adds --apply and --yes to c. --yes without --apply is refused.
func (a *Act) Flags(c *cobra.Command) {
	c.Flags().BoolVar(&a.Apply, "apply", false, "do it; without, it only shows what it would do")
	c.Flags().BoolVar(&a.Yes, "yes", false, "do not ask; for scripts")
	c.PreRunE = func(*cobra.Command, []string) error {
		if a.Yes && !a.Apply {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "yes", Detail: "without --apply nothing is done, and nothing is asked", WayOut: "add --apply to do it, or leave out --yes to see what it would do"}
		}
		return nil
	}
}

// OverrideFlag adds --override NAME, which allows what would hurt the cluster. what
// completes its help.
func (a *Act) OverrideFlag(c *cobra.Command, what string) {
	c.Flags().StringVar(&a.Override, "override", "", "the cluster's name, "+what)
}

// OverrideWay returns the way out of a refusal that --override lifts. It names the
// cluster that would be hurt, so that people see whether it is the one they mean.
func (a *Act) OverrideWay() string {
	return fmt.Sprintf("say --override %s, the name of this cluster", a.Cluster.Name())
}

// Overrides reports whether --override is given. A name that is not the cluster's is an
// error.
func (a *Act) Overrides() (bool, error) {
	if a.Override != "" && a.Override != a.Cluster.Name() {
		return false, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "override", Detail: fmt.Sprintf("%q is not the name of this cluster", a.Override), WayOut: a.OverrideWay() + ", if you mean it"}
	}
	return a.Override != "", nil
}

// Meant reports whether what was shown is to be done: whether --apply is given, and
// --yes, or somebody at a terminal says yes. Call it after every check that can refuse it.
func (a *Act) Meant(c *cobra.Command) (bool, error) {
	switch {
	case !a.Apply && a.How != "":
		fmt.Fprintf(c.ErrOrStderr(), "nothing was done: %s does it\n", a.How)
		return false, nil
	case !a.Apply:
		fmt.Fprintln(c.ErrOrStderr(), "nothing was done: --apply does it")
		return false, nil
	case a.Yes:
		begin(c)
		return true, nil
	}
	nobody := &millrace.Error{Reason: millrace.ReasonInvalid, Field: "yes", Detail: "nobody is there to be asked", WayOut: "add --yes"}
	in, ok := c.InOrStdin().(*os.File)
	if !ok || !display.IsTerminal(in) {
		return false, nobody
	}
	fmt.Fprint(c.ErrOrStderr(), "Do it? [y/N] ")
	line, err := bufio.NewReader(Input(c.Context(), in)).ReadString('\n')
	if err := c.Context().Err(); err != nil {
		return false, err
	}
	if err != nil && line == "" { // as when /dev/null is read, which looks like a terminal
		return false, nobody
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		fmt.Fprintln(c.ErrOrStderr(), "nothing was done")
		return false, nil
	}
	begin(c)
	return true, nil
}

// underWay is the key of the annotation that begin gives a command.
const underWay = "under way"

// begin marks a command as one that has begun to do what was meant, see perhapsDone.
func begin(c *cobra.Command) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[underWay] = "yes"
}

// Meant is [Act.Meant] for functions that do not have the cobra command.
type Meant func() (bool, error)

// Of binds [Act.Meant] to a command.
func (a *Act) Of(c *cobra.Command) Meant { return func() (bool, error) { return a.Meant(c) } }

// ErrDry is returned by a callback to end an operation of which it has only shown what it
// would do. The command does not report it.
var ErrDry = errors.New("nothing was done")

// Noted writes e to the audit trail by note, with who acts, and then calls do. If e
// cannot be written, it does not call do. If do fails, it writes e again, with the fault.
func Noted(note func(audit.Entry) error, e audit.Entry, do func() error) error {
	e.Who = clusters.Who()
	if err := note(e); err != nil {
		return err
	}
	err := do()
	if err != nil {
		e.Fault = err.Error()
		err = errors.Join(err, note(e))
	}
	return err
}
