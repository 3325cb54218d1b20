//go:build linux

package campaign

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.uid, Gid: p.uid}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.mu.cmd, p.mu.ended = cmd, ended
	go p.wait(cmd, ended)
	return nil
}

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

// kill ends it by a signal and waits until it is over.
func (p *process) kill(s syscall.Signal) {
	p.mu.Lock()
	p.mu.wanted = false
	cmd, ended := p.mu.cmd, p.mu.ended
	if cmd != nil {
		_ = cmd.Process.Signal(s)               // it may be over
		_ = cmd.Process.Signal(syscall.SIGCONT) // a frozen one does not hear SIGTERM
	}
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		<-ended
	}
}

// signal freezes or thaws it.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cmd != nil {
		_ = p.mu.cmd.Process.Signal(s) // it may be over
	}
}

// lastLines is the end of its log.
func (p *process) lastLines(bytes int) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-bytes):])
}
