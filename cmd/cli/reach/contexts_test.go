package reach

import (
	"os"
	"path/filepath"
	"testing"
)

// The example of the help is a file that is read.
func TestTheExampleOfContexts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "contexts.yaml")
	if err := os.WriteFile(file, []byte(contextExample), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MILLRACE_CONTEXTS", file)
	_, all, err := readContexts()
	if err != nil || len(all.Contexts) != 2 || all.Contexts["prod"].Connections.Etcd.TLS.ServerName != "etcd.example" {
		t.Errorf("%+v, %v", all, err)
	}
}
