package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
)

// act is what a command has that changes something of a cluster: it shows what it
// would do, and does it with --apply, after a question that --yes answers. A test
// (guards) names the commands that act at once, and why.
type act struct {
	cm       *clusterFlags // the cluster; nil for what is of a log or a bucket alone
	apply    bool
	yes      bool
	override string
	output   form
	how      string // does it, in place of --apply
}

// flags adds --apply and --yes. The second says nothing without the first.
func (a *act) flags(c *cobra.Command) {
	c.Flags().BoolVar(&a.apply, "apply", false, "do it; without, it only shows what it would do")
	c.Flags().BoolVar(&a.yes, "yes", false, "do not ask; for scripts")
	c.PreRunE = func(*cobra.Command, []string) error {
		if a.yes && !a.apply {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "yes", Detail: "without --apply nothing is done, and nothing is asked", WayOut: "add --apply to do it, or leave out --yes to see what it would do"}
		}
		return nil
	}
}

// overrideFlag adds --override, which does what hurts.
func (a *act) overrideFlag(c *cobra.Command, what string) {
	c.Flags().StringVar(&a.override, "override", "", "the cluster's name, "+what)
}

// overrides reports whether --override is said. Another name than the cluster's
// is refused.
func (a *act) overrides() (bool, error) {
	if a.override != "" && a.override != a.cm.clusterName() {
		return false, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "override", Detail: fmt.Sprintf("%q is not the name of this cluster", a.override), WayOut: "type the name of the cluster in full, if you mean it"}
	}
	return a.override != "", nil
}

// meant reports whether what was shown is to be done. Call it when every check
// that can refuse it has been made.
func (a *act) meant(c *cobra.Command) (bool, error) {
	switch {
	case !a.apply && a.how != "":
		fmt.Fprintf(c.ErrOrStderr(), "nothing was done: %s does it\n", a.how)
		return false, nil
	case !a.apply:
		fmt.Fprintln(c.ErrOrStderr(), "nothing was done: --apply does it")
		return false, nil
	case a.yes:
		return true, nil
	}
	nobody := &millrace.Error{Reason: millrace.ReasonInvalid, Field: "yes", Detail: "nobody is there to be asked", WayOut: "add --yes"}
	in, ok := c.InOrStdin().(*os.File)
	if !ok || !isTerminal(in) {
		return false, nobody
	}
	fmt.Fprint(c.ErrOrStderr(), "Do it? [y/N] ")
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && line == "" { // as of /dev/null
		return false, nobody
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		fmt.Fprintln(c.ErrOrStderr(), "nothing was done")
		return false, nil
	}
	return true, nil
}

// meant is [act.meant] for those who do not see the command.
type meant func() (bool, error)

// of binds it to a command.
func (a *act) of(c *cobra.Command) meant { return func() (bool, error) { return a.meant(c) } }

// errDry ends what was only shown, where nothing but an error ends it.
var errDry = errors.New("nothing was done")

// noted does what is written down first: what cannot be is not done. A failure is
// written down, too.
func noted(note func(audit.Entry) error, e audit.Entry, do func() error) error {
	e.Who = whoami()
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
