package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The configuration that each role's help shows is one that the role takes,
// and has every key that there is.
func TestExamplesOfConfiguration(t *testing.T) {
	for _, c := range []struct {
		command *cobra.Command
		into    any
	}{
		{partitionerCommand(), new(partitionerConfig)}, {indexnodeCommand(), new(indexnodeConfig)}, {brokerCommand(), new(brokerConfig)}, {coordinatorCommand(), new(coordinatorConfig)},
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
		for _, key := range keysOf(reflect.TypeOf(c.into).Elem()) {
			if c.command.Name() == "partitioner" && key == "etcd" { // which it does not ask
				continue
			}
			if !regexp.MustCompile(`(?m)(^|[ {,])` + key + `(:|,|$)`).MatchString(example) {
				t.Errorf("%s: the help does not tell of %s", c.command.Name(), key)
			}
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

// keysOf returns the keys of a configuration, those of what stands within too.
func keysOf(of reflect.Type) (keys []string) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Map:
		return keysOf(of.Elem())
	case reflect.Struct:
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ",")
			if name != "" {
				keys = append(keys, name)
			}
			keys = append(keys, keysOf(of.Field(i).Type)...)
		}
	}
	return keys
}

func written(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "role.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
