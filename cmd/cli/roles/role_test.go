package roles

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/internal/document"
)

// The configuration that each role's help shows is one that the role takes, and
// has every key that is the role's own.
func TestExamplesOfConfiguration(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("feeds", 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MILLRACE_KAFKA_INSECURE", "true")
	t.Setenv("MILLRACE_ETCD_INSECURE", "true")
	for _, command := range []*cobra.Command{Partitioner(), IndexNode(), Broker(), Coordinator()} {
		role := command.Name()
		_, example, ok := strings.Cut(command.Long, "role "+role+" FILE.\n\n")
		if !ok || len(example) < 100 {
			t.Fatalf("%s shows no configuration: %q", role, command.Long)
		}
		cfg, err := Files().Named(role)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Read(clitest.Written(t, example), cfg, command.Flags()); err != nil {
			t.Error(err)
		}
		ofAll := Files().OfEveryRole()
		for _, k := range Files().ReferenceOf(cfg) {
			if key := k.Key[strings.LastIndexByte(k.Key, '.')+1:]; !ofAll[k.Key] && !regexp.MustCompile(`(?m)(^|[ {,])`+key+`(:|,|$)`).MatchString(example) {
				t.Errorf("%s: the help does not tell of %s", role, k.Key)
			}
		}
	}
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

// A role that is told to stop is not ready any more while it goes on with its
// work; then its parts end, what they worked with is closed, and the admin port after all
// of it.
func TestARoleLeavesBeforeItStops(t *testing.T) {
	told, tell := context.WithCancel(t.Context())
	defer tell()
	c := &Common{Admin: clitest.FreeAddr(t)}
	leaving, left, ending, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	closing, closed := make(chan struct{}), make(chan struct{})
	r, ctx, err := newRole(told, c, func() error { return nil }, func() {
		close(leaving)
		<-left
	})
	if err != nil {
		t.Fatal(err)
	}
	r.run(func() error {
		<-ctx.Done()
		close(ending)
		<-ended
		return nil
	})
	all := make(chan error, 1)
	go func() {
		all <- r.wait(func() error {
			close(closing)
			<-closed
			return nil
		})
	}()
	clitest.WaitFor(t.Context(), t, "the role to be ready", func() bool { return clitest.SaysReady(c.Admin) == "ok\n" })
	tell()
	<-leaving
	if said := clitest.SaysReady(c.Admin); said != errStopping.Error()+"\n" || ctx.Err() != nil {
		t.Errorf("while it leaves: %q, its work %v", said, ctx.Err())
	}
	close(left)
	<-ending
	if said := clitest.SaysReady(c.Admin); said != errStopping.Error()+"\n" {
		t.Errorf("while its parts end: %q", said)
	}
	close(ended)
	<-closing
	if said := clitest.SaysReady(c.Admin); said != errStopping.Error()+"\n" {
		t.Errorf("while it closes what its parts worked with: %q", said)
	}
	close(closed)
	if err := <-all; err != nil {
		t.Error(err)
	}
	if said := clitest.SaysReady(c.Admin); !strings.Contains(said, "refused") {
		t.Errorf("when it has ended: %q", said)
	}
}

// A role with nobody who asks it ends its work when it is told to.
func TestARoleThatNobodyAsksStopsAtOnce(t *testing.T) {
	told, tell := context.WithCancel(t.Context())
	r, ctx, err := newRole(told, new(Common), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	tell()
	<-ctx.Done()
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}
