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

// Act is what a command has that changes something of a cluster: it shows what it
// would do, and does it with --apply, after a question that --yes answers. A test
// (guards) names the commands that act at once, and why.
type Act struct {
	Cluster  *clusters.Flags // the cluster; nil for what is of a log or a bucket alone
	Apply    bool
	Yes      bool
	Override string
	Output   display.Form
	How      string // does it, in place of --apply
}

// Flags adds --apply and --yes. The second says nothing without the first.
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

// OverrideFlag adds --override, which does what hurts.
func (a *Act) OverrideFlag(c *cobra.Command, what string) {
	c.Flags().StringVar(&a.Override, "override", "", "the cluster's name, "+what)
}

// OverrideWay says what does what hurts, to who was refused it: the name of the cluster
// that they would hurt is told, so that they see whether it is the one they mean.
func (a *Act) OverrideWay() string {
	return fmt.Sprintf("say --override %s, the name of this cluster", a.Cluster.Name())
}

// Overrides reports whether --override is said. Another name than the cluster's
// is refused.
func (a *Act) Overrides() (bool, error) {
	if a.Override != "" && a.Override != a.Cluster.Name() {
		return false, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "override", Detail: fmt.Sprintf("%q is not the name of this cluster", a.Override), WayOut: a.OverrideWay() + ", if you mean it"}
	}
	return a.Override != "", nil
}

// Meant reports whether what was shown is to be done. Call it when every check
// that can refuse it has been made.
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
	if err != nil && line == "" { // as of /dev/null
		return false, nobody
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		fmt.Fprintln(c.ErrOrStderr(), "nothing was done")
		return false, nil
	}
	begin(c)
	return true, nil
}

// underWay is the annotation of a command that does what was meant.
const underWay = "under way"

func begin(c *cobra.Command) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[underWay] = "yes"
}

// Meant is [Act.Meant] for those who do not see the command.
type Meant func() (bool, error)

// Of binds it to a command.
func (a *Act) Of(c *cobra.Command) Meant { return func() (bool, error) { return a.Meant(c) } }

// ErrDry ends what was only shown, where nothing but an error ends it.
var ErrDry = errors.New("nothing was done")

// Noted does what is written down first: what cannot be is not done. A failure is
// written down, too.
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
