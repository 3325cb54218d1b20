package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// family is the processes of a run, which end with it whatever happens.
type family struct {
	ctx    context.Context // ends when one of them ends by itself
	failed context.CancelCauseFunc
	dir    string
	binary string     // that roles run; empty: this one
	all    []*process // in the order they started
}

// process is a role running this binary.
type process struct {
	name  string
	cmd   *exec.Cmd
	admin string
	stdin io.Closer
	ended chan struct{}
	told  atomic.Bool // to end
}

func newFamily(ctx context.Context, dir string) *family {
	f := &family{dir: dir}
	f.ctx, f.failed = context.WithCancelCause(ctx)
	return f
}

// close ends every process, the last first.
func (f *family) close() error { return f.end(0) }

// end ends the processes from the i-th on.
func (f *family) end(i int) error {
	var errs []error
	for j := len(f.all) - 1; j >= i; j-- {
		errs = append(errs, f.all[j].end())
	}
	f.all = f.all[:i]
	return errors.Join(errs...)
}

// start runs a command of the binary on so many processors.
func (f *family) start(name, admin string, listen bool, processors int, args ...string) (*process, io.Reader, error) {
	binary := f.binary
	if binary == "" {
		var err error
		if binary, err = os.Executable(); err != nil {
			return nil, nil, err
		}
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", processors))
	return f.launch(name, admin, listen, cmd)
}

// launch runs a command. Its output goes to a file, or to the returned reader
// if it is to be listened to.
func (f *family) launch(name, admin string, listen bool, cmd *exec.Cmd) (*process, io.Reader, error) {
	if err := f.ctx.Err(); err != nil {
		return nil, nil, context.Cause(f.ctx)
	}
	log, err := os.Create(filepath.Join(f.dir, name+".log"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	p := &process{name: name, admin: admin, cmd: cmd, ended: make(chan struct{})}
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

// patience is how long a process may take to end.
const patience = time.Minute

func (p *process) end() error {
	p.told.Store(true)
	p.stdin.Close()
	p.cmd.Process.Signal(syscall.SIGTERM) // fails if it is over
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
		p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not end within %s and was killed", p.name, patience)
	}
}

// get asks a process's admin port.
func (p *process) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return nil, fmt.Errorf("%s: %s%s: %s: %s", p.name, p.admin, path, resp.Status, strings.TrimSpace(string(text)))
	}
	return resp.Body, nil
}

// ready waits until the process says it is.
func (p *process) ready(ctx context.Context) error {
	for {
		body, err := p.get(ctx, "/readyz")
		if err == nil {
			return body.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// cpu is the CPU time that the process has used.
func (p *process) cpu(ctx context.Context) (time.Duration, error) {
	body, err := p.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "process_cpu_seconds_total "); ok {
			s, err := strconv.ParseFloat(text, 64)
			return time.Duration(s * float64(time.Second)), err
		}
	}
	return 0, fmt.Errorf("%s tells no process_cpu_seconds_total", p.name)
}

// profile writes a CPU profile of the time to come.
func (p *process) profile(ctx context.Context, d time.Duration, path string) error {
	body, err := p.get(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(d.Seconds()))))
	if err != nil {
		return err
	}
	defer body.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}

// freeAddr is a loopback address that nobody listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
