package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// A module that init writes is generated, checked and served by its own Makefile,
// by the code generated from its model; a binary without that code gives the same
// answer, interpreted.
func TestInitMakesABinaryOfOnesOwn(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx := clitest.Bounded(t)
	dir := newModule(t)
	command := func(name string, args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, name, args...)
		c.Dir = dir
		return c
	}
	if err := os.RemoveAll(filepath.Join(dir, "gen")); err != nil { // all of which is generated
		t.Fatal(err)
	}
	for _, target := range []string{"generate", "check"} {
		if out, err := command("make", target).CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
	}

	// Code of a version that the release does not run does not compile, and is
	// written again by a millrace that does not have it.
	file := filepath.Join(dir, "gen", "helpful.go")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(text, []byte("RunsVersion1"), []byte("RunsVersion99"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := command("go", "build", "./gen").CombinedOutput(); err == nil || !strings.Contains(string(out), "undefined: compute.RunsVersion99") {
		t.Errorf("code of another release compiles, or is refused otherwise: %v\n%s", err, out)
	}
	if out, err := command("make", "generate").CombinedOutput(); err != nil {
		t.Fatalf("make generate: %v\n%s", err, out)
	}
	if again, err := os.ReadFile(file); err != nil || !bytes.Equal(text, again) {
		t.Errorf("it was not written again, %v:\n%s", err, again)
	}

	// Whoever starts it works on another cluster, as a rule.
	contexts := filepath.Join(t.TempDir(), "contexts.yaml")
	if err := os.WriteFile(contexts, []byte("current: prod\ncontexts:\n  prod: {etcd: [\"127.0.0.1:1\"], tls: {ca: none.pem}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := []string{"MILLRACE_CONTEXTS=" + contexts, "MILLRACE_CONTEXT=prod", "MILLRACE_CLUSTER=prod", "MILLRACE_TOPIC_PREFIX=prod-"}

	// serve starts a cluster, asks it for the feed and ends it. It has a process
	// group of its own, as a terminal would give it.
	serve := func(start func(flags string) *exec.Cmd) (a answer) {
		t.Helper()
		http, grpc, kafka, etcd, admin := clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t)
		c := start(fmt.Sprintf("--data %s --http %s --grpc %s --kafka-listen %s --etcd-listen %s --admin %s", t.TempDir(), http, grpc, kafka, etcd, admin))
		name := filepath.Join(t.TempDir(), "dev.log")
		log, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		c.Stdout, c.Stderr, c.SysProcAttr = log, log, &syscall.SysProcAttr{Setpgid: true}
		c.Env = append(c.Environ(), elsewhere...)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Wait() // make says that it was interrupted
		}()
		defer func() {
			syscall.Kill(-c.Process.Pid, syscall.SIGINT)
			<-ended
		}()
		clitest.WaitFor(ctx, t, "the cluster to have the module", func() bool {
			text, err := os.ReadFile(name)
			select {
			case <-ended:
				t.Fatalf("%v: it ended by itself:\n%s", c.Args, text)
			default:
			}
			return err == nil && bytes.Contains(text, []byte("The cluster stays up"))
		})
		out, err := millraceCommand(ctx, "feed", "--addr", grpc, "--feed", "reviews", "--viewer", "customer:1", "--attribute", "language=en",
			"--entities", "customer:2,customer:3,customer:4", "--as-of", "2026-01-10T00:00:00Z", "--output", "json").Output()
		if err != nil {
			t.Fatalf("feed: %v", err)
		}
		if err := json.Unmarshal(out, &a); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return a
	}
	own := serve(func(flags string) *exec.Cmd { return command("make", "dev", "FLAGS="+flags) })
	stock := serve(func(flags string) *exec.Cmd {
		return millraceCommand(ctx, append([]string{"dev", "--module", dir}, strings.Fields(flags)...)...)
	})
	if own.Receipt.Execution != "generated" || stock.Receipt.Execution != "interpreted" {
		t.Errorf("the module's binary served %s, and one without its code %s", own.Receipt.Execution, stock.Receipt.Execution)
	}
	if len(own.Items) < 5 || fmt.Sprint(own.Items) != fmt.Sprint(stock.Items) {
		t.Errorf("the module's binary gives\n%v\nand one without its code\n%v", own.Items, stock.Items)
	}
}

// newModule is a module that init wrote.
func newModule(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ranking")
	out := run(t, "init", "--module", "git.example.org/shop/ranking", "--replace", filepath.Join("..", ".."), dir)
	for _, next := range []string{"cd " + dir, "make generate", "make dev"} {
		if !strings.Contains(out, next) {
			t.Errorf("init does not say %q:\n%s", next, out)
		}
	}
	return dir
}

// init writes nothing where something is, nor a module that could not be built.
func TestInitRefuses(t *testing.T) {
	t.Parallel()
	full, root := t.TempDir(), filepath.Join("..", "..")
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	for want, args := range map[string][]string{
		"it has mine":      {"--replace", root, full},
		"by --replace":     {dir}, // this test is of no release
		"is no checkout":   {"--replace", full, dir},
		"no path of a mod": {"--replace", root, "--module", "Not/A path", dir},
	} {
		if out, err := output(append([]string{"init"}, args...)...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%v: %v, and not %q:\n%s", args, err, want, out)
		}
	}
	if have, err := os.ReadDir(full); err != nil || len(have) != 1 || clitest.Exists(dir) {
		t.Errorf("it wrote %v all the same, %v", have, err)
	}
}
