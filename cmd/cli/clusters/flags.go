// Package clusters is the cluster that a command works on: which one its flags name,
// how it is at one moment, and its nodes, which are asked what operators may.
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

// Name is the cluster's name in etcd.
func (f *Flags) Name() string { return cmp.Or(f.Cluster, "millrace") }

// FlagsOf adds the flags that name a cluster.
func FlagsOf(f *pflag.FlagSet) *Flags {
	var cm Flags
	f.StringSliceVar(&cm.Etcd, "etcd", []string{"127.0.0.1:2379"}, "etcd, host:port each")
	f.StringVar(&cm.Cluster, "cluster", "millrace", "the cluster's name in etcd")
	return &cm
}

// etcdWait is how long a command waits for etcd. Roles wait for ever.
const etcdWait = 10 * time.Second

// Open opens the cluster for a command, which fails where a role waits.
func (f *Flags) Open(ctx context.Context) (*cluster.Client, error) {
	return f.reach(ctx, cluster.Config{Who: Who()})
}

// changesAnswers are commands of models, feeds, experiments and keys of pages
// that change what brokers answer by.
var changesAnswers = []string{"define", "start", "ramp", "pause", "stop", "drop", "push", "rollback", "release", "page-keys"}

// NotLost refuses a change of a cluster whose etcd has lost state: brokers keep
// what they had, and take over nothing before it is restored. What others show
// of it is not what serves, which they are told.
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

// WarnLost says before what a command shows of an etcd that has lost state, if it has,
// that it is not how the cluster is.
func WarnLost(w io.Writer, lost string) {
	if lost != "" {
		fmt.Fprintf(w, "warning: etcd has lost state: %s. Brokers and index nodes go on by what they had; this is only what etcd has. %s\n", lost, cluster.RestoreWayOut)
	}
}

// On makes a command that runs on a cluster, which stays open while it runs. It tells
// which brokers have heard of what it changed.
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

// TellFaults tells, each once, why what a command has from etcd may not be what etcd
// should hold.
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

// Who is how the history names who runs the command.
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

// LastGood is where a role keeps what it last knew of its cluster.
func LastGood(data string) string {
	if data == "" {
		return ""
	}
	return filepath.Join(data, "cluster")
}
