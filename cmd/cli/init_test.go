package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/version"
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
	if have, err := os.ReadDir(full); err != nil || len(have) != 1 || exists(dir) {
		t.Errorf("it wrote %v all the same, %v", have, err)
	}
}

// The Go of a module is that of this one.
func TestInitNamesTheGoOfThisModule(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?m)^go (.+)$`).FindSubmatch(text); m == nil || string(m[1]) != goVersion {
		t.Errorf("go.mod says %s, and init %s", m, goVersion)
	}
}

// What a module's generated code is of may come, change and go.
func TestGenerateOfAModule(t *testing.T) {
	t.Parallel()
	dir := newModule(t)
	m := func() *module {
		t.Helper()
		m, err := openModule(dir)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	generate := func() string {
		t.Helper()
		var out bytes.Buffer
		if err := m().generate(&out, false); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	stale := func(want string) {
		t.Helper()
		if err := m().generate(&bytes.Buffer{}, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it is not %q: %v", want, err)
		}
	}
	change := func(name, from, to string) {
		t.Helper()
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, []byte(from)) {
			t.Fatalf("%s without %q: %v", name, from, err)
		}
		if err := os.WriteFile(file, bytes.Replace(text, []byte(from), []byte(to), 1), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}

	if err := m().generate(&bytes.Buffer{}, true); err != nil {
		t.Errorf("of a new module: %v", err)
	}
	for _, file := range []string{"gen/doc.go", "gen/helpful.go", "gen/review_decoder.go", "gen/reviews_feed.go", "models/helpful/manifest.json"} {
		if out := generate(); !strings.Contains(out, filepath.Join(dir, file)+"\n") {
			t.Errorf("it does not say that it wrote %s:\n%s", file, out)
		}
	}

	change("models/helpful/spec.yaml", "record.stars - 3", "record.stars - 2")
	stale("helpful.go is stale")
	change("models/helpful/spec.yaml", "record.stars - 2", "record.stars - 3")
	change("models/helpful/spec.yaml", "fresh: 3", "fresh: 4") // which is in no code
	stale("helpful is not as it was sealed")
	change("models/helpful/spec.yaml", "fresh: 4", "fresh: 3")

	// A schema that comes into use after another of its name has the decoder.
	first, err := os.ReadFile(filepath.Join(dir, "gen/review_decoder.go"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "schemas/review.avsc"))
	if err != nil {
		t.Fatal(err)
	}
	later := bytes.Replace(text, []byte(`    {"name": "text"`), []byte(`    {"name": "photos", "type": "int", "default": 0},`+"\n"+`    {"name": "text"`), 1)
	if err := os.WriteFile(filepath.Join(dir, "schemas/review_2.avsc"), later, 0o644); err != nil {
		t.Fatal(err)
	}
	generate()
	if second, err := os.ReadFile(filepath.Join(dir, "gen/review_decoder.go")); err != nil || bytes.Equal(first, second) || !bytes.Contains(second, []byte("// photos")) {
		t.Errorf("the decoder is not of the later schema, %v:\n%s", err, second)
	}

	// A feed without a filter has no code, and takes that away which it had.
	change("feeds/reviews.yaml", "filter: ", "# filter: ")
	stale("reviews_feed.go is of what is gone")
	if out := generate(); !strings.Contains(out, "reviews_feed.go is removed") || exists(filepath.Join(dir, "gen/reviews_feed.go")) {
		t.Errorf("it was not removed:\n%s", out)
	}

	// Files of people stay.
	if err := os.WriteFile(filepath.Join(dir, "gen/mine.go"), []byte("package gen\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	generate()
	if !exists(filepath.Join(dir, "gen/mine.go")) {
		t.Error("it removed a file that it had not written")
	}

	change("models/helpful/spec.yaml", "name: helpful", "name: doc")
	if err := m().generate(&bytes.Buffer{}, false); err == nil || !strings.Contains(err.Error(), "two of the schemas, models and feeds") {
		t.Errorf("two sources of one file: %v", err)
	}
	move("schemas", "gone")
	move("models", "gone-too")
	move("feeds", "gone-as-well")
	if _, err := openModule(dir); err == nil || !strings.Contains(err.Error(), "millrace init DIR") {
		t.Errorf("a directory with nothing: %v", err)
	}
}

// The binary of a release makes a module that requires the release.
func TestInitRequiresTheRelease(t *testing.T) {
	defer func(was string) { version.Release = was }(version.Release)
	version.Release = "v1.2.3"
	dir := filepath.Join(t.TempDir(), "ranking")
	if err := (scaffold{}).write(&bytes.Buffer{}, dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if want := "module example.org/ranking\n\ngo " + goVersion + "\n\nrequire github.com/millrace/millrace v1.2.3\n\ntool "; err != nil || !strings.HasPrefix(string(text), want) {
		t.Errorf("%v: go.mod is\n%s", err, text)
	}
	if exists(filepath.Join(dir, "go.sum")) {
		t.Error("it has the checksums of nothing that it replaces")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
