package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/freeport"
)

// startRole runs a role of a binary ("": this one) on so many processors. Its configuration
// is config, and a free port of this machine for admin.
func (f *Family) startRole(binary, role, name, config string, processors int) (*Process, error) {
	admin, err := freeport.Addr()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(f.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config+fmt.Sprintf("admin: %q\n", admin)), 0o644); err != nil {
		return nil, err
	}
	cmd, err := command(binary, processors, role, "--config", file)
	if err != nil {
		return nil, err
	}
	p, err := f.Launch(name, cmd)
	if err == nil {
		p.admin = admin
	}
	return p, err
}

// get asks a role's admin port for a path. The caller closes the body. Any status but 200 is
// an error.
func (p *Process) get(ctx context.Context, path string) (io.ReadCloser, error) {
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
		return nil, fmt.Errorf("%s: %s%s: %s: %s", p.Name, p.admin, path, resp.Status, strings.TrimSpace(string(text)))
	}
	return resp.Body, nil
}

// ready waits until the role says that it is ready, or ctx ends.
func (p *Process) ready(ctx context.Context) error {
	for {
		body, err := p.get(ctx, "/readyz")
		if err == nil {
			return body.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.Name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Profile profiles the role's CPU for d, rounded down to whole seconds, at least one, and
// writes the profile to a file.
func (p *Process) Profile(ctx context.Context, d time.Duration, path string) error {
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
