//go:build linux

package campaign

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is one process of the cluster. When it ends although nobody ended it,
// that is told, and it is started again so that the campaign can go on.
type process struct {
	name string
	uid  uint32 // 0: the campaign's own
	args []string
	env  []string
	log  string
	told func(name, how string) // it ended by itself

	mu struct {
		sync.Mutex
		cmd    *exec.Cmd
		ended  chan struct{}
		wanted bool // that it runs
	}
}

// start starts it, unless it runs.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.wanted = true
	return p.launch()
}

func (p *process) launch() error {
	if p.mu.cmd != nil {
		return nil
	}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = f, f
	if p.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.uid, Gid: p.uid}}
	}
	if err := startForLife(cmd); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.mu.cmd, p.mu.ended = cmd, ended
	go p.wait(cmd, ended)
	return nil
}

// startForLife starts a process that is killed when this one ends. The kernel kills
// it when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG), as one does
// that a goroutine was locked to until its end: all are started by one that stays.
func startForLife(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	parents() <- func() { started <- cmd.Start() }
	return <-started
}

// parents has functions called by one thread, which stays until this process ends.
var parents = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

// restartAfter is the pause before a process that ended by itself is started
// again, as a supervisor would.
const restartAfter = 3 * time.Second

func (p *process) wait(cmd *exec.Cmd, ended chan struct{}) {
	err := cmd.Wait()
	p.mu.Lock()
	p.mu.cmd = nil
	by := p.mu.wanted
	p.mu.Unlock()
	close(ended)
	if !by {
		return
	}
	p.told(p.name, fmt.Sprint(err))
	time.Sleep(restartAfter)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.wanted {
		if err := p.launch(); err != nil {
			p.told(p.name, err.Error())
		}
	}
}

// kill ends it by a signal, waits until it is over, and reports whether it ran.
func (p *process) kill(s syscall.Signal) (ran bool) {
	p.mu.Lock()
	p.mu.wanted = false
	cmd, ended := p.mu.cmd, p.mu.ended
	if cmd != nil {
		_ = cmd.Process.Signal(s)               // it may be over
		_ = cmd.Process.Signal(syscall.SIGCONT) // a frozen one does not hear SIGTERM
	}
	p.mu.Unlock()
	if cmd == nil {
		return false
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		<-ended
	}
	return true
}

// signal freezes or thaws it, and reports whether it ran.
func (p *process) signal(s syscall.Signal) (ran bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.cmd != nil && p.mu.cmd.Process.Signal(s) == nil
}

// lastLines is the end of its log.
func (p *process) lastLines(bytes int) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-bytes):])
}

// A process lives on when the thread ends that asked for it.
func TestProcessesOutliveThreads(t *testing.T) {
	ended := make(chan string, 1)
	p := &process{
		name: "sleeper", args: []string{"sleep", "1h"}, log: filepath.Join(t.TempDir(), "log"),
		told: func(_, how string) { ended <- how },
	}
	asked := make(chan error)
	var thread string
	var ask func()
	ask = func() {
		runtime.LockOSThread()                    // for good: the thread ends with it,
		if syscall.Gettid() == syscall.Getpid() { // but for the first, which is asleep from now on
			go ask()
			return
		}
		thread = fmt.Sprintf("/proc/self/task/%d", syscall.Gettid())
		asked <- p.start()
	}
	go ask()
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
	defer p.kill(syscall.SIGKILL)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(thread); os.IsNotExist(err) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the thread that asked has not ended within a minute")
		}
	}
	select {
	case how := <-ended:
		t.Errorf("it ended with the thread: %s", how)
	case <-time.After(100 * time.Millisecond):
	}
}
