package clusters

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

type faulty struct{ why error }

func (f faulty) Fault() error { return f.why }

// What several watchers say is told once.
func TestFaultsAreToldOnce(t *testing.T) {
	var out strings.Builder
	c := &cobra.Command{}
	c.SetErr(&out)
	back, odd := errors.New("etcd went back"), errors.New("a model is odd")
	TellFaults(c, faulty{back}, faulty{}, faulty{errors.Join(back, odd)}, faulty{back})
	if want := "NOTE: etcd went back\nNOTE: a model is odd\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
