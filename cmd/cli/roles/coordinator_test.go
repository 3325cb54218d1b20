package roles

import (
	"context"
	"fmt"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/minicluster"
)

// A coordinator may be asked whether it is ready all the time while it starts.
func TestACoordinatorIsAskedWhileItStarts(t *testing.T) {
	admin := clitest.FreeAddr(t)
	e, err := minicluster.StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	told, tell := context.WithCancel(t.Context())
	defer tell()
	command := Coordinator()
	command.SetArgs([]string{"--config", clitest.Written(t, fmt.Sprintf("name: one\netcd: [%q]\nadmin: %q\n", e.Addr(), admin))})
	ended := make(chan error, 1)
	go func() { ended <- command.ExecuteContext(told) }()
	clitest.WaitFor(t.Context(), t, "the coordinator to be ready", func() bool { return clitest.SaysReady(admin) == "ok\n" })
	tell()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
