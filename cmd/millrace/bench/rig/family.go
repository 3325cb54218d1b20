// Package rig is what benchmarks of whole systems share: it starts the roles,
// and what they are compared with, as processes of their own, asks them from
// clients, and tells what they used.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// Family is the processes of a run, which end with it whatever happens.
type Family struct {
	Ctx context.Context // ends when one of them ends by itself
	Dir string          // of their files

	failed context.CancelCauseFunc
	all    []*Process // in the order they started
}

// Process is one of them.
type Process struct {
	Name  string
	cmd   *exec.Cmd
	admin string
	stdin io.Closer
	ended chan struct{}
	told  atomic.Bool // to end
}

// NewFamily returns a family without processes, which ends with ctx.
func NewFamily(ctx context.Context, dir string) *Family {
	f := &Family{Dir: dir}
	f.Ctx, f.failed = context.WithCancelCause(ctx)
	return f
}

// Close ends every process, the last first.
func (f *Family) Close() error { return f.End(0) }

// Size is how many processes there are.
func (f *Family) Size() int { return len(f.all) }

// End ends the processes from the i-th on.
func (f *Family) End(i int) error {
	var errs []error
	for j := len(f.all) - 1; j >= i; j-- {
		errs = append(errs, f.all[j].end())
	}
	f.all = f.all[:i]
	return errors.Join(errs...)
}

// Start runs a command of this binary on so many processors. The reader is its
// output.
func (f *Family) Start(name string, processors int, args ...string) (*Process, io.Reader, error) {
	cmd, err := command("", processors, args...)
	if err != nil {
		return nil, nil, err
	}
	return f.launch(name, true, cmd)
}

// command is a command of a binary; "": of this one.
func command(binary string, processors int, args ...string) (*exec.Cmd, error) {
	if binary == "" {
		var err error
		if binary, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", processors))
	return cmd, nil
}

// Launch runs a command, whose output goes to a file.
func (f *Family) Launch(name string, cmd *exec.Cmd) (*Process, error) {
	p, _, err := f.launch(name, false, cmd)
	return p, err
}

// LaunchListening runs a command; the reader is its output.
func (f *Family) LaunchListening(name string, cmd *exec.Cmd) (*Process, io.Reader, error) {
	return f.launch(name, true, cmd)
}

func (f *Family) launch(name string, listen bool, cmd *exec.Cmd) (*Process, io.Reader, error) {
	if err := f.Ctx.Err(); err != nil {
		return nil, nil, context.Cause(f.Ctx)
	}
	log, err := os.Create(filepath.Join(f.Dir, name+".log"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	p := &Process{Name: name, cmd: cmd, ended: make(chan struct{})}
	p.cmd.Stderr = log
	apart(p.cmd)
	var out io.Reader
	if listen {
		if out, err = p.cmd.StdoutPipe(); err != nil {
			return nil, nil, err
		}
	} else {
		p.cmd.Stdout = log
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, err
	}
	f.all = append(f.all, p)
	go func() {
		state, _ := p.cmd.Process.Wait()
		close(p.ended)
		if !p.told.Load() {
			f.failed(fmt.Errorf("%s ended by itself: %v; the end of its log:\n%s", name, state, tail(log.Name())))
		}
	}()
	return p, out, nil
}

// tail is the end of a file.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// Patience is how long a process may take to end.
const Patience = 10 * time.Second

func (p *Process) end() error {
	p.told.Store(true)
	p.stdin.Close()
	late := time.After(Patience)
	for told := false; ; told = true {
		if !told || p.admin != "" { // a role that is told twice stops without draining
			p.cmd.Process.Signal(syscall.SIGTERM) // fails if it is over
		}
		select {
		case <-p.ended:
			return nil
		case <-time.After(50 * time.Millisecond):
		case <-late:
			p.cmd.Process.Kill()
			<-p.ended
			return fmt.Errorf("%s did not end within %s and was killed", p.Name, Patience)
		}
	}
}

// Used is what the process has used.
func (p *Process) Used() (Used, error) { return used(p.cmd.Process.Pid) }

// Dialled returns when do succeeds, or [Patience] has passed.
func Dialled(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}
