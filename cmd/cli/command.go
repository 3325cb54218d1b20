package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/secure"
)

// begun is the error of a command whose line was well.
type begun struct{ error }

func (b begun) Unwrap() error { return b.error }

// runLine runs a command line. One that its command cannot take is refused
// together with how the command is used.
func runLine(ctx context.Context, root *cobra.Command) error {
	c, err := root.ExecuteContextC(ctx)
	if b := (begun{}); err == nil || errors.As(err, &b) {
		return err
	}
	return fmt.Errorf("%w\nusage: %s", err, c.UseLine())
}

// errInterrupted ends a command that is told to stop before its end.
var errInterrupted = errors.New("interrupted")

// prepare completes c and the commands below it: an error of a command that has
// begun is told from one of its line, in the command line's words, and a name
// that no command has is an error.
func prepare(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			if err := run(c, args); err != nil {
				if errors.Is(err, context.Canceled) && c.Context().Err() != nil {
					err = errInterrupted
				}
				return begun{withWay(told(err), clusterWays)}
			}
			return nil
		}
	} else if c.HasParent() && c.HasSubCommands() {
		c.RunE = onlyGroups
	}
	for _, sub := range c.Commands() {
		prepare(sub)
	}
}

// told gives an error of a connection the key that it is of, and a way out.
func told(err error) error {
	if _, ok := errors.AsType[*invalid](err); ok {
		return err
	}
	if e := (*millrace.Error)(nil); errors.As(err, &e) && e.WayOut != "" && e.Reason != millrace.ReasonUnavailable {
		return err
	}
	refused := &millrace.Error{Reason: millrace.ReasonForbidden, Field: "tls", Detail: err.Error(), WayOut: secure.Refused(err)}
	switch text := err.Error(); { // packages name themselves in their errors
	case strings.Contains(text, "kafka: "):
		refused = kafka.Refused(err)
	case strings.Contains(text, "cluster: "):
		refused = cluster.Refused(err)
	}
	if refused == nil || refused.WayOut == "" {
		return err
	}
	return refused
}

// onlyGroups is the run of a command that only groups others.
func onlyGroups(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return begunOrNil(c.Help())
	}
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	return fmt.Errorf("%s has no command %.40q; %s", c.CommandPath(), args[0], hint.Nearest(args[0], names))
}

func begunOrNil(err error) error {
	if err == nil {
		return nil
	}
	return begun{err}
}

// way is the way out that the command line has of a refusal, by a flag or a
// command. What refuses knows no flags: it names the fields of documents.
type way struct {
	of     error
	wayOut string
}

var clusterWays = []way{
	{cluster.ErrAway, "start etcd, or name its address by --etcd"},
	{cluster.ErrShrink, "say --allow-shrink if that is meant"},
	{cluster.ErrUnknownOwner, "start them first, or say --force if that is meant"},
}

// refused is a refusal with the way out that the command line has.
type refused struct {
	says *millrace.Error
	is   error
}

func (r refused) Error() string   { return r.says.Error() }
func (r refused) Unwrap() []error { return []error{r.says, r.is} }

// withWay gives a refusal the first way out of its kind.
func withWay(err error, ways []way) error {
	for _, w := range ways {
		if !errors.Is(err, w.of) {
			continue
		}
		says := millrace.Error{Reason: millrace.ReasonInvalid, Detail: err.Error()}
		if e := (*millrace.Error)(nil); errors.As(err, &e) {
			says = *e
		}
		says.WayOut = w.wayOut
		return refused{&says, err}
	}
	return err
}
