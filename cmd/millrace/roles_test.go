package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
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
			if key == "records" || key == "empty_keys" { // of before, refused: see TestCacheMemory
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

// The bound of the caches is a number with a unit; what bounded them before is
// refused with what to write now.
func TestCacheMemory(t *testing.T) {
	for text, want := range map[string]int{"": 0, "128MiB": 128 << 20, "8GiB": 8 << 30, "1 TiB": 1 << 40} {
		c := &indexnodeConfig{}
		c.Cache.Memory = text
		if got, err := c.cacheMemory(); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for text, field := range map[string]string{
		"{memory: 8}": "cache.memory", "{memory: 1.5GiB}": "cache.memory", "{memory: -1GiB}": "cache.memory", "{memory: 64MiB}": "cache.memory", "{memory: 99999999TiB}": "cache.memory",
		"{records: 2000000}": "cache.records", "{empty_keys: 5}": "cache.empty_keys",
	} {
		c := &indexnodeConfig{}
		if err := document.Decode([]byte("cache: "+text), c); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_, err := c.cacheMemory()
		var e *millrace.Error
		if !errors.As(err, &e) || e.Field != field || e.WayOut == "" || e.Detail == "" {
			t.Errorf("%s: %v", text, err)
		}
	}
}
