// Package rig is what benchmarks of whole systems share. It starts Millrace's roles, and the
// systems they are compared with, as processes of their own, asks them from clients, and
// measures their CPU time and memory.
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

// Family is the processes that a run starts, to be ended by Close. Its methods are not for
// concurrent use.
type Family struct {
	Ctx context.Context // ends when a process ends by itself; the cause says which
	Dir string          // of the processes' files

	failed context.CancelCauseFunc
	all    []*Process // in the order they started
}

// Process is a process of a family.
type Process struct {
	Name  string
	cmd   *exec.Cmd
	admin string // host:port of the role's admin port; "": it is no role
	stdin io.Closer
	ended chan struct{} // closed when it has ended
	told  atomic.Bool   // it was told to end
}

// NewFamily returns a family without processes. Its Ctx ends with ctx; the processes end
// only with Close.
func NewFamily(ctx context.Context, dir string) *Family {
	f := &Family{Dir: dir}
	f.Ctx, f.failed = context.WithCancelCause(ctx)
	return f
}

// Close ends every process, the last one started first.
func (f *Family) Close() error { return f.End(0) }

// Size returns how many processes there are.
func (f *Family) Size() int { return len(f.all) }

// End ends the processes from the i-th on, counted from 0, the last one started first.
func (f *Family) End(i int) error {
	var errs []error
	for j := len(f.all) - 1; j >= i; j-- {
		errs = append(errs, f.all[j].end())
	}
	f.all = f.all[:i]
	return errors.Join(errs...)
}

// Start runs a command of this binary on so many processors. The reader is its standard
// output.
func (f *Family) Start(name string, processors int, args ...string) (*Process, io.Reader, error) {
	cmd, err := command("", processors, args...)
	if err != nil {
		return nil, nil, err
	}
	return f.launch(name, true, cmd)
}

// command returns a command of a binary ("": this one), which uses at most so many processors
// at a time (GOMAXPROCS).
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

// Launch runs a command, whose output goes to the file name.log in the family's directory.
func (f *Family) Launch(name string, cmd *exec.Cmd) (*Process, error) {
	p, _, err := f.launch(name, false, cmd)
	return p, err
}

// LaunchListening runs a command. The reader is its standard output; its errors go to the
// file name.log in the family's directory.
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

// tail returns the last 2000 bytes of a file.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// Patience is how long a process may take to end, and how long [Dialled] tries.
const Patience = 10 * time.Second

func (p *Process) end() error {
	p.told.Store(true)
	p.stdin.Close()
	late := time.After(Patience)
	for told := false; ; told = true {
		if !told || p.admin != "" { // a role that is told twice stops without draining
			p.cmd.Process.Signal(syscall.SIGTERM) // an error says that it has ended
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

// Used returns what the process has used since it started.
func (p *Process) Used() (Used, error) { return used(p.cmd.Process.Pid) }

// Dialled calls do until it succeeds, or [Patience] has passed, or ctx ends. Then it returns
// the last error of do.
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
