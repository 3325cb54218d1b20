package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

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

// faults is how many there are, in words.
func faults(n int) string {
	if n == 1 {
		return "1 fault"
	}
	return fmt.Sprintf("%d faults", n)
}

// way is the way out that the command line has of a refusal, by a flag or a
// command. What refuses knows no flags: it names the fields of documents.
type way struct {
	of     error
	wayOut string
}

var (
	clusterWays = []way{
		{cluster.ErrLost, restoreWayOut},
		{cluster.ErrAway, "start etcd, or name its address by --etcd"},
		{cluster.ErrShrink, "say --allow-shrink if that is meant"},
		{cluster.ErrUnknownOwner, "start them first, or say --force if that is meant"},
	}
	modelWays = []way{
		{cluster.ErrNothingBefore, "let another version serve: millrace model push PACK --serve"},
		{cluster.ErrNoVersion, "millrace model list names what there is"},
		{cluster.ErrInUse, "let feeds name another model (millrace feed define FILE.yaml), stop the experiments that it names (millrace experiment stop NAME), or another version serve (millrace model rollback NAME, or millrace model push PACK --serve)"},
	}
	feedWays = []way{
		{cluster.ErrNothingBefore, "put another definition in place: millrace feed define FILE.yaml"},
		{cluster.ErrNoVersion, "millrace feed list names what there is"},
		{cluster.ErrInUse, "stop the experiments first: millrace experiment stop NAME"},
	}
	experimentWays = []way{
		{cluster.ErrNoVersion, "millrace experiment list names what there is"},
	}
)

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

// etcdWait is how long a command waits for etcd. Roles wait for ever.
const etcdWait = 10 * time.Second

// reachCluster opens the cluster for a command, which fails where a role waits.
func (c *Common) reachCluster(ctx context.Context) (*cluster.Client, error) {
	return c.reach(ctx, cluster.Config{Who: whoami()})
}

// changesAnswers are commands of models, feeds, experiments and keys of pages
// that change what brokers answer by.
var changesAnswers = []string{"define", "start", "ramp", "pause", "stop", "drop", "push", "rollback", "page-keys"}

// notLost refuses a change of a cluster whose etcd has lost state: brokers keep
// what they had, and take over nothing before it is restored. What others show
// of it is not what serves, which they are told.
func notLost(ctx context.Context, c *cobra.Command, cl *cluster.Client) error {
	maps, err := cl.Watch(ctx)
	if err != nil {
		return err
	}
	switch lost := maps.Current().Lost(); {
	case lost == "":
	case !slices.Contains(changesAnswers, c.Name()):
		fmt.Fprintf(c.ErrOrStderr(), "warning: etcd has lost state: %s. Brokers and index nodes go on by what they had; this is only what etcd has. %s\n", lost, restoreWayOut)
	default:
		return &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: fmt.Sprintf("etcd has lost state: %s. Brokers keep what they had, and would not take over what is changed now", lost),
			WayOut: restoreWayOut,
		}
	}
	return nil
}

// onCluster makes a command that runs on a cluster, which is open for its time.
func onCluster(c *cobra.Command, run func(ctx context.Context, cm *Common, cl *cluster.Client, args []string) error) *Common {
	cm := clusterFlagsOf(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx, cancel := context.WithCancel(c.Context())
		defer cancel()
		cl, err := cm.reachCluster(ctx)
		if err != nil {
			return err
		}
		defer cl.Close()
		if err := notLost(ctx, c, cl); err != nil {
			return err
		}
		return run(ctx, cm, cl, args)
	}
	return cm
}

// lookAtCluster is reachCluster for a command that writes nothing.
func (c *Common) lookAtCluster(ctx context.Context) (*cluster.Client, error) {
	return c.reach(ctx, cluster.Config{ReadOnly: true})
}

func (c *Common) reach(ctx context.Context, cfg cluster.Config) (*cluster.Client, error) {
	cfg.Endpoints, cfg.Name, cfg.Wait = c.Etcd, c.clusterName(), etcdWait
	cfg.Access = securityOf(ctx).Connections.Etcd
	cfg.Log = slog.New(quiet{slog.Default().Handler()})
	cl, err := cluster.Open(ctx, cfg)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("stopped while waiting for etcd at %v; nothing was done", c.Etcd)
	}
	return cl, err
}

// quiet logs everything at DEBUG: what watchers log for the operator of a role,
// a command tells by itself.
type quiet struct{ slog.Handler }

func (h quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

func (h quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{h.Handler.WithAttrs(attrs)} }

func (h quiet) WithGroup(name string) slog.Handler { return quiet{h.Handler.WithGroup(name)} }

// note tells why what a command has from etcd may not be what etcd should hold.
func note(c *cobra.Command, watched ...interface{ Fault() error }) {
	for _, w := range watched {
		if fault := w.Fault(); fault != nil {
			fmt.Fprintln(c.ErrOrStderr(), "NOTE:", fault)
		}
	}
}
