package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/minicluster"
)

// TestMain lets the test binary be the millrace binary: with MILLRACE_MAIN set
// it runs its arguments as a command, so that tests start and kill the real
// processes.
func TestMain(m *testing.M) {
	if os.Getenv("MILLRACE_MAIN") != "" {
		Main()
		return
	}
	os.Setenv("MILLRACE_CONTEXTS", os.DevNull) // not those of whoever runs the tests
	os.Exit(m.Run())
}

// process is a running millrace.
type process struct {
	t      *testing.T
	name   string
	args   []string
	log    string
	failed context.CancelCauseFunc // when it ends by itself
	cmd    *exec.Cmd
	killed atomic.Bool
	ended  chan struct{}
}

// start runs millrace with args until the test ends, logging to a file that a
// failed test prints the end of. If the process ends by itself it cancels.
func start(t *testing.T, failed context.CancelCauseFunc, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, args: args, log: filepath.Join(t.TempDir(), name+".log"), failed: failed}
	p.restart()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text, err := os.ReadFile(p.log)
			if err != nil {
				t.Log(err)
			}
			t.Logf("the end of %s's log:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	return p
}

func (p *process) restart() {
	p.t.Helper()
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	p.cmd = millraceCommand(context.Background(), p.args...) // kill ends it
	p.cmd.Stdout, p.cmd.Stderr = f, f
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.killed.Store(false)
	p.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		if err := cmd.Wait(); !p.killed.Load() {
			p.failed(fmt.Errorf("%s ended by itself: %v", p.name, err))
		}
	}(p.cmd, p.ended)
}

// kill ends the process as a power cut would: by SIGKILL.
func (p *process) kill() {
	p.killed.Store(true)
	p.cmd.Process.Kill() // fails if it is over
	<-p.ended
}

// under is a command that runs another, its arguments, instead of itself; or
// nothing.
var under []string

// end ends the process as an operator does, by SIGTERM.
func (p *process) end() {
	p.t.Helper()
	p.killed.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(clitest.Patience):
		p.t.Errorf("%s was told to end and did not within %v", p.name, clitest.Patience)
		p.kill()
	}
}

// millraceCommand is a millrace with args.
func millraceCommand(ctx context.Context, args ...string) *exec.Cmd {
	all := slices.Concat(under, []string{os.Args[0]}, args)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Env = append(os.Environ(), "MILLRACE_MAIN=1")
	return cmd
}

// run runs a command to its end, which must come.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := output(args...)
	if err != nil {
		t.Fatalf("millrace %v: %v\n%s", args, err, out)
	}
	return out
}

func output(args ...string) (string, error) {
	late := fmt.Errorf("not done within %v", clitest.Patience)
	ctx, cancel := context.WithTimeoutCause(context.Background(), clitest.Patience, late)
	defer cancel()
	cmd := millraceCommand(ctx, args...)
	cmd.WaitDelay = time.Second // for what it started
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil && context.Cause(ctx) == late {
		err = late
	}
	return out.String(), err
}

// neighbours starts a Kafka with the topics of a prefix, and an etcd with one node
// assigned, node-1, for processes that a test starts. They end with the test.
func neighbours(t *testing.T, ctx context.Context, prefix string) (kafkaAt, etcdAt string) {
	t.Helper()
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	etcd, err := minicluster.StartEtcd(ctx, t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { etcd.Close() })
	if err := kafka.EnsureTopics(ctx, kafka.At(k.Addr()), kafka.Prefixed(prefix), nil); err != nil {
		t.Fatal(err)
	}
	run(t, "cluster", "assign", "--etcd", etcd.Addr(), "--nodes", "node-1", "--replicas", "1", "--force")
	return k.Addr(), etcd.Addr()
}
