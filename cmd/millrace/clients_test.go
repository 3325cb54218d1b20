package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestClients does what docs/clients.md says, with the Python that
// MILLRACE_PYTHON names, or any that has grpcio-tools.
func TestClients(t *testing.T) {
	python, given := os.LookupEnv("MILLRACE_PYTHON")
	if !given {
		python = "python3"
	}
	python, err := exec.LookPath(python)
	if err == nil {
		err = exec.Command(python, "-c", "import grpc, grpc_tools.protoc").Run()
	}
	switch {
	case err != nil && given:
		t.Fatalf("MILLRACE_PYTHON is to have grpcio and grpcio-tools: %v", err)
	case err != nil:
		t.Skip("no Python with grpcio-tools: make a virtual environment with them and set MILLRACE_PYTHON to its python")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	p := newPage(ctx, t, "docs/clients.md")
	p.write("try/venv/bin/python", []byte("#!/bin/sh\nexec '"+python+"' \"$@\"\n"))
	if err := os.Chmod(filepath.Join(p.dir, "try/venv/bin/python"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.carryOut(p.blocks())
}
