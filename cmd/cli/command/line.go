// Package command has what the commands of the command line have in common: how a
// command line is run, or refused with a way out (what to do instead); how a command
// that changes something shows it first and asks; and what arguments mean.
package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/logs"
	"github.com/millrace/millrace/internal/secure"
)

// begun is an error of a command whose arguments were valid.
type begun struct{ error }

func (b begun) Unwrap() error { return b.error }

// Run runs a command line. If the arguments are wrong, the error also says how the
// command is used. root must have been given to [Prepare].
func Run(ctx context.Context, root *cobra.Command) error {
	c, err := root.ExecuteContextC(ctx)
	if b := (begun{}); err == nil || errors.As(err, &b) {
		return err
	}
	return fmt.Errorf("%w\nusage: %s", err, c.UseLine())
}

// errInterrupted is the error of a command that was told to stop before its end.
var errInterrupted = errors.New("interrupted")

// Prepare completes c and the commands below it. It marks the errors of a command that
// has begun, so that [Run] tells them from errors of its arguments. It also gives these
// errors ways out that name flags and commands. A name that no command has becomes an
// error.
func Prepare(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			if err := run(c, args); err != nil {
				if errors.Is(err, context.Canceled) && c.Context().Err() != nil {
					err = errInterrupted
				}
				return begun{WithWay(Told(perhapsDone(c, err)), clusterWays)}
			}
			return nil
		}
	} else if c.HasParent() && c.HasSubCommands() {
		c.RunE = onlyGroups
	}
	for _, sub := range c.Commands() {
		Prepare(sub)
	}
}

// Told gives an error of a connection, to etcd, Kafka or by TLS, the configuration key
// that it is about and a way out. It returns any other error as it is, and also one that
// has a way out already, unless its reason is [millrace.ReasonUnavailable].
func Told(err error) error {
	if _, ok := errors.AsType[*config.Invalid](err); ok {
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
		refused = dial.Refused(err)
	}
	if refused == nil || refused.WayOut == "" {
		return err
	}
	return refused
}

// perhapsDone completes the error of a command that had begun to change something, and
// ended because etcd gave no answer or somebody stopped it: nobody knows how far it came.
func perhapsDone(c *cobra.Command, err error) error {
	unheard := errors.Is(err, cluster.ErrAway) || errors.Is(err, errInterrupted)
	if c.Annotations[underWay] == "" || !unheard || strings.Contains(err.Error(), "not known") {
		return err
	}
	return fmt.Errorf("%w; it is not known whether it was done, or how much of it: the same command without --apply shows what is there", err)
}

// onlyGroups is the run of a command that only groups others.
func onlyGroups(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return Begun(c.Help())
	}
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	return fmt.Errorf("%s has no command %.40q; %s", c.CommandPath(), args[0], hint.Nearest(args[0], names))
}

// Begun marks err as the error of a command whose arguments were valid; nil stays nil.
func Begun(err error) error {
	if err == nil {
		return nil
	}
	return begun{err}
}

// Way is the way out that the command line knows for the error Of, by a flag or a
// command. The packages that make the errors know no flags: they name fields of documents.
type Way struct {
	Of     error
	WayOut string
}

var clusterWays = []Way{
	{cluster.ErrAway, "start etcd, or name its address by --etcd"},
	{topology.ErrShrink, "say --allow-shrink if that is meant"},
	{topology.ErrUnknownOwner, "start them first, or say --force if that is meant"},
}

// refused is an error with the text of says, which names flags and commands. It wraps both
// says and is, the error that says replaces in the output.
type refused struct {
	says *millrace.Error
	is   error
}

func (r refused) Error() string   { return r.says.Error() }
func (r refused) Unwrap() []error { return []error{r.says, r.is} }

// WithWay gives an error the first of the ways that is for it. It returns any other error
// as it is.
func WithWay(err error, ways []Way) error {
	for _, w := range ways {
		if !errors.Is(err, w.Of) {
			continue
		}
		says := millrace.Error{Reason: millrace.ReasonInvalid, Detail: err.Error()}
		if e := (*millrace.Error)(nil); errors.As(err, &e) {
			says = *e
		}
		says.WayOut = w.WayOut
		return Refused(&says, err)
	}
	return err
}

// Refused returns an error with the text of says. [errors.Is] and [errors.As] find both
// says and is in it.
func Refused(says *millrace.Error, is error) error { return refused{says, is} }

// ToldToStop returns nil for the error of a canceled context, and any other error as it
// is. It is for a command that runs until it is told to stop. For every other command a
// cancellation is an error: it has not done what it was to do.
func ToldToStop(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

type levelsKey struct{}

// WithLevels returns a context that carries the log levels of the process.
func WithLevels(ctx context.Context, l *logs.Levels) context.Context {
	return context.WithValue(ctx, levelsKey{}, l)
}

// LevelsOf returns the log levels that WithLevels put into ctx, or else new ones that no
// log goes by. It never returns nil.
func LevelsOf(ctx context.Context) *logs.Levels {
	if l, ok := ctx.Value(levelsKey{}).(*logs.Levels); ok {
		return l
	}
	return logs.NewLevels(logs.Setting{})
}
