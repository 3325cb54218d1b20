package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// TestClients does what docs/clients.md says: it generates clients and calls a
// broker by them. MILLRACE_PYTHON names a Python with the packages of the page,
// or any python3 that has them does; MILLRACE_NODE is a directory with the
// page's node_modules.
func TestClients(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	python, node := pythonOfPage(t), nodeOfPage(t)
	ctx := clitest.Bounded(t)
	p := newPage(ctx, t, "docs/clients.md")
	p.write("try/venv/bin/python", []byte("#!/bin/sh\nexec '"+python+"' \"$@\"\n"))
	if err := os.Chmod(filepath.Join(p.dir, "try/venv/bin/python"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(node, filepath.Join(p.dir, "try/node_modules")); err != nil {
		t.Fatal(err)
	}
	p.carryOut(p.blocks())
}

// pythonOfPage returns the Python to run, or skips.
func pythonOfPage(t *testing.T) string {
	t.Helper()
	python, given := os.LookupEnv("MILLRACE_PYTHON")
	if !given {
		python = "python3"
	}
	python, err := exec.LookPath(python)
	if err == nil {
		err = exec.Command(python, "-c", "import grpc, grpc_tools.protoc, openapi_spec_validator, datamodel_code_generator, pydantic").Run()
	}
	switch {
	case err != nil && given:
		t.Fatalf("MILLRACE_PYTHON is to have the packages that docs/clients.md installs: %v", err)
	case err != nil:
		t.Skip("no Python with the packages of docs/clients.md: make a virtual environment with them and set MILLRACE_PYTHON to its python")
	}
	return python
}

// nodeOfPage returns the node_modules to use, or skips.
func nodeOfPage(t *testing.T) string {
	t.Helper()
	dir, given := os.LookupEnv("MILLRACE_NODE")
	if !given {
		t.Skip("MILLRACE_NODE is not set: npm install what docs/clients.md says and set it to that directory")
	}
	modules, err := filepath.Abs(filepath.Join(dir, "node_modules"))
	if err == nil {
		_, err = exec.LookPath("node")
	}
	for _, name := range []string{"openapi-typescript", "openapi-fetch", "typescript", "@types/node"} {
		if _, missing := os.Stat(filepath.Join(modules, name)); missing != nil {
			err = missing
		}
	}
	if err != nil {
		t.Fatalf("MILLRACE_NODE is to have the packages that docs/clients.md installs: %v", err)
	}
	return modules
}
