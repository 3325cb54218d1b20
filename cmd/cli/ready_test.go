package cli

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/version"
	"github.com/millrace/millrace/internal/admin"
)

// printed runs a line in this process.
func printed(t *testing.T, line ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	c := root()
	c.SetOut(&out)
	c.SetArgs(line)
	err := command.Run(t.Context(), c)
	return out.String(), err
}

// A container's engine is told by the command whether a role is ready.
func TestReady(t *testing.T) {
	var fault error
	s := httptest.NewServer(admin.Handler(prometheus.NewRegistry(), func() error { return fault }, http.NotFoundHandler()))
	defer s.Close()
	addr := s.Listener.Addr().String()
	if out, err := printed(t, "ready", "--admin", addr); err != nil || out != "ready: "+addr+"\n" {
		t.Errorf("%q, %v", out, err)
	}
	fault = admin.Noted{What: errors.New("it has nothing to do")}
	if out, err := printed(t, "ready", "--admin", addr); err != nil || out != "ready: "+addr+" (it has nothing to do)\n" {
		t.Errorf("%q, %v", out, err)
	}
	fault = errors.New("waiting for etcd")
	if out, err := printed(t, "ready", "--admin", addr); err == nil || !strings.Contains(err.Error(), "waiting for etcd") || out != "" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := printed(t, "ready", "--admin", clitest.FreeAddr(t)); err == nil {
		t.Error("nobody is ready")
	}
}

// A release says its version.
func TestVersion(t *testing.T) {
	defer func(was string) { version.Release = was }(version.Release)
	version.Release = "v1.2.3"
	if out, err := printed(t, "version"); err != nil || !strings.HasPrefix(out, "millrace v1.2.3 (go") {
		t.Errorf("%q, %v", out, err)
	}
	if version.Release = ""; version.Here() == "" {
		t.Error("what is no release has no version")
	}
}
