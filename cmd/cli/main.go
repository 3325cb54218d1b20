// Package cli is the command line of Millrace: every role and tool. A binary of Millrace
// calls Main, and imports the generated code of models and schemas that it is to use. Only
// Main is meant for other modules; the packages below this one may change at any time.
package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/ask"
	"github.com/millrace/millrace/cmd/cli/backups"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/cmd/cli/dev"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/doctor"
	"github.com/millrace/millrace/cmd/cli/experiments"
	"github.com/millrace/millrace/cmd/cli/export"
	"github.com/millrace/millrace/cmd/cli/models"
	"github.com/millrace/millrace/cmd/cli/operate"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/roles"
	"github.com/millrace/millrace/cmd/cli/rollouts"
	"github.com/millrace/millrace/cmd/cli/steer"
	"github.com/millrace/millrace/cmd/cli/topics"
	"github.com/millrace/millrace/cmd/cli/version"
	"github.com/millrace/millrace/internal/logs"
	"github.com/millrace/millrace/internal/tracing"
)

// Main runs the command line of the process. After an error it ends the process with exit
// code 1. A main function needs to call nothing else.
func Main() {
	c := root()
	c.SetOut(display.OnScreen(os.Stdout))
	c.SetErr(display.OnScreen(os.Stderr))
	if err := command.Run(untilTold(), c); err != nil {
		fmt.Fprintln(display.OnScreen(os.Stderr), "millrace:", err)
		os.Exit(1)
	}
}

// untilTold returns a context that ends when the process gets SIGINT or SIGTERM. A second
// signal ends the process at once. One channel receives both. With signal.NotifyContext, a
// second signal could be lost while the handler of the first is being removed.
func untilTold() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan os.Signal, 2)
	signal.Notify(told, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-told
		cancel()
		again := <-told
		slog.Warn("told again to stop: it ends at once; a role stays registered in etcd until its lease ends")
		if s, ok := again.(syscall.Signal); ok {
			os.Exit(128 + int(s)) // the exit code that a shell gives for a signal
		}
		os.Exit(1)
	}()
	return ctx
}

// root returns the command millrace with all others below it.
func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "millrace",
		Short: "A fan-out-on-read feed index",
		Long: `Millrace builds a viewer's feed when it is asked for: it reads the recent
timelines of everything the viewer follows, filters and scores every candidate
next to the data, and returns the best.

Begin with "millrace demo": a whole cluster in this process, a sample network,
one member's feed, and the curl line that asks for it.`,
		Version:       version.Here(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var level logs.Setting
	var format string
	c.PersistentFlags().TextVar(&level, "log-level", logs.Setting{Level: slog.LevelWarn}, "log from this level on: DEBUG, INFO, WARN or ERROR; and by package: WARN,broker=DEBUG")
	c.PersistentFlags().StringVar(&format, "log-format", logs.Text, "log in this form: text or json")
	c.PersistentFlags().String("context", "", `work on this cluster: see "millrace help context"`)
	reach.Flags(c.PersistentFlags())
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if e, ok := errors.AsType[*millrace.Error](err); ok {
			return e // without the text that the parser of flags puts before it
		}
		return err
	})
	c.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		levels := logs.NewLevels(level)
		h, err := logs.New(os.Stderr, format, levels, tracing.Forced)
		if err != nil {
			return err
		}
		slog.SetDefault(slog.New(h))
		c.SetContext(command.WithLevels(c.Context(), levels))
		return command.Begun(reach.InContext(c))
	}
	c.AddGroup(
		&cobra.Group{ID: "try", Title: "Try it:"},
		&cobra.Group{ID: "use", Title: "Use a cluster:"},
		&cobra.Group{ID: "run", Title: "Run a role:"},
	)
	group := func(id string, commands ...*cobra.Command) {
		for _, sub := range commands {
			sub.GroupID = id
			c.AddCommand(sub)
		}
	}
	group("try", dev.Demo(), dev.Command(), benchCommand())
	group("use", topics.Load(), ask.Command(rollouts.Feeds()...), ask.Why(), models.Command(rollouts.Models), experiments.Command(), export.Command(), dev.Init(), dev.Generate(), steer.Trace(), steer.Cluster(), steer.Node(), operate.Partition(), operate.State(), operate.Timeline(), operate.Record(), operate.Cache(), operate.Ingest(), topics.Schema(), topics.Command(), topics.DeadLetters(), backups.Command(), doctor.Command(), reach.Command(), doctor.Ready(), version.Command(), reach.Help())
	group("run", roles.Partitioner(), roles.IndexNode(), roles.Broker(), roles.Coordinator(), config.Command(roles.Files()))
	command.Prepare(c)
	return c
}
