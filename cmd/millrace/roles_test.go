package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The configuration that each role's help shows is one that the role takes.
func TestExamplesOfConfiguration(t *testing.T) {
	for _, c := range []struct {
		command *cobra.Command
		into    any
	}{
		{partitionerCommand(), new(partitionerConfig)}, {indexnodeCommand(), new(indexnodeConfig)}, {brokerCommand(), new(brokerConfig)},
	} {
		_, example, ok := strings.Cut(c.command.Long, "in YAML:\n\n")
		if !ok || len(example) < 100 {
			t.Fatalf("%s shows no configuration: %q", c.command.Name(), c.command.Long)
		}
		file := filepath.Join(t.TempDir(), "role.yaml")
		if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := readYAML(file, c.into); err != nil {
			t.Errorf("%s: %v", c.command.Name(), err)
		}
	}
	var b brokerConfig
	if err := readYAML(written(t, "quotas:\n  jobs: {per_second: 2.5, burst: 9}\nzone: a\n"), &b); err != nil || b.Quotas["jobs"].PerSecond != 2.5 || b.Quotas["jobs"].Burst != 9 || b.Zone != "a" {
		t.Errorf("%+v, %v", b, err)
	}
	if err := readYAML(written(t, "quota: {}\n"), &b); err == nil {
		t.Error("a misspelt key was taken")
	}
}

func written(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "role.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
