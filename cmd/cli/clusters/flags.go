// Package clusters gives commands the cluster that they work on: the flags that name it,
// its state at one moment, calls to its nodes, and what its brokers have heard of a
// change.
package clusters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/cluster"
)

// Flags name the cluster that a command works on.
type Flags struct {
	Etcd    []string // host:port each
	Cluster string   // its name in etcd
}

// Name returns the cluster's name in etcd.
func (f *Flags) Name() string { return cmp.Or(f.Cluster, "millrace") }

// FlagsOf adds the flags that name a cluster to f, and returns their values.
func FlagsOf(f *pflag.FlagSet) *Flags {
	var cm Flags
	f.StringSliceVar(&cm.Etcd, "etcd", []string{"127.0.0.1:2379"}, "etcd, host:port each")
	f.StringVar(&cm.Cluster, "cluster", "millrace", "the cluster's name in etcd")
	return &cm
}

// etcdWait is how long a command waits for etcd. The long-running processes (brokers, index
// nodes, partitioners and coordinators, which are called roles) wait for ever.
const etcdWait = 10 * time.Second

// Open opens the cluster for a command that may write. It fails if etcd does not answer
// within etcdWait.
func (f *Flags) Open(ctx context.Context) (*cluster.Client, error) {
	return f.reach(ctx, cluster.Config{Who: Who()})
}

// changesAnswers are the names of the commands on models, feeds, experiments and page
// keys that change how brokers answer.
var changesAnswers = []string{"define", "start", "ramp", "pause", "stop", "drop", "push", "rollback", "release", "page-keys"}

// NotLost looks whether etcd has lost state, for example because it was restored from an
// old snapshot. Brokers then keep what they had, and take over no change until the state is
// restored. So NotLost refuses a command that changes how brokers answer. For any other
// command it prints a warning that what the command shows is not what serves.
func NotLost(ctx context.Context, c *cobra.Command, cl *cluster.Client) error {
	maps, err := cl.Watch(ctx)
	if err != nil {
		return err
	}
	switch lost := maps.Current().Lost(); {
	case lost == "":
	case !slices.Contains(changesAnswers, c.Name()):
		WarnLost(c.ErrOrStderr(), lost)
	default:
		return &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: fmt.Sprintf("etcd has lost state: %s. Brokers keep what they had, and would not take over what is changed now", lost),
			WayOut: cluster.RestoreWayOut,
		}
	}
	return nil
}

// WarnLost prints a warning if etcd has lost state: what the command shows next is what
// etcd has, and not how the cluster is. lost says what is lost; empty: nothing.
func WarnLost(w io.Writer, lost string) {
	if lost != "" {
		fmt.Fprintf(w, "warning: etcd has lost state: %s. Brokers and index nodes go on by what they had; this is only what etcd has. %s\n", lost, cluster.RestoreWayOut)
	}
}

// On makes run the action of c. It adds the flags that name a cluster to c, and returns
// them. The cluster is open while run runs. After run, also after an error of run, c prints
// which brokers have heard of what run changed.
func On(c *cobra.Command, run func(ctx context.Context, cm *Flags, cl *cluster.Client, args []string) error) *Flags {
	cm := FlagsOf(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx, cancel := context.WithCancel(c.Context())
		defer cancel()
		cl, err := cm.Open(ctx)
		if err != nil {
			return err
		}
		defer cl.Close()
		if err := NotLost(ctx, c, cl); err != nil {
			return err
		}
		err = run(ctx, cm, cl, args)
		return errors.Join(err, TellHeard(ctx, c.OutOrStdout(), cl))
	}
	return cm
}

// OpenReadOnly is Open for a command that writes nothing.
func (f *Flags) OpenReadOnly(ctx context.Context) (*cluster.Client, error) {
	return f.reach(ctx, cluster.Config{ReadOnly: true})
}

func (f *Flags) reach(ctx context.Context, cfg cluster.Config) (*cluster.Client, error) {
	cfg.Endpoints, cfg.Name, cfg.Wait = f.Etcd, f.Name(), etcdWait
	cfg.Access = reach.Of(ctx).Connections.Etcd
	cfg.Log = slog.New(quiet{slog.Default().Handler()})
	cl, err := cluster.Open(ctx, cfg)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("etcd at %v did not answer in time", f.Etcd)
	}
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("stopped while waiting for etcd at %v; nothing was done", f.Etcd)
	}
	return cl, err
}

// quiet logs everything at DEBUG. The code that watches etcd logs for the operator of a
// long-running process; a command prints by itself what matters.
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

// TellFaults prints why what a command has read from etcd may differ from what etcd should
// hold: the faults of watched, each once.
func TellFaults(c *cobra.Command, watched ...interface{ Fault() error }) {
	told := map[string]bool{}
	for _, w := range watched {
		fault := w.Fault()
		if fault == nil {
			continue
		}
		for line := range strings.SplitSeq(fault.Error(), "\n") {
			if !told[line] {
				fmt.Fprintln(c.ErrOrStderr(), "NOTE:", line)
			}
			told[line] = true
		}
	}
}

// Who returns the name of the person who runs the command, as histories and audit logs have
// it: user@host. A part that is not known is "somebody" or "somewhere".
func Who() string {
	name, host := "somebody", "somewhere"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// LastGood returns the directory where a long-running process keeps what it last knew of
// its cluster. It is below its data directory; empty if it has no data directory.
func LastGood(data string) string {
	if data == "" {
		return ""
	}
	return filepath.Join(data, "cluster")
}
