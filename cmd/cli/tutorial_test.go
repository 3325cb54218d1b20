package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// TestModelsTutorial does what docs/models.md says, block by block: it writes
// the files shown, runs the commands shown, and compares what they print.
func TestModelsTutorial(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx := clitest.Bounded(t)
	p := newPage(ctx, t, "docs/models.md")
	p.carryOut(p.blocks())
	p.checkAnswers()
}

// TestReadme does what the README says, as a newcomer would.
func TestReadme(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx := clitest.Bounded(t)
	p := newPage(ctx, t, "README.md")
	p.carryOut(p.blocks())
}

// carryOut writes the files and runs the commands of blocks.
func (p *page) carryOut(blocks []block) {
	p.Helper()
	commands := 0
	for _, b := range blocks {
		switch words := strings.Fields(b.info); {
		case words[0] == "console":
			for _, c := range b.commands() {
				p.run(c)
				commands++
			}
		case len(words) == 2:
			p.write(words[1], []byte(p.real.Replace(b.text)))
		default:
			p.Fatalf("%s:%d: a block %q, which is neither a console nor a file", p.name, b.line, b.info)
		}
	}
	if commands < 5 {
		p.Errorf("%s: only %d commands", p.name, commands)
	}
}

// checkAnswers holds the page's two answers against each other, which must be
// the same to the last bit, and against what LightGBM gave for the features
// that its training computes.
func (p *page) checkAnswers() {
	p.Helper()
	before, after := p.answer("interpreted.json"), p.answer("generated.json")
	if before.Receipt.Execution != "interpreted" || after.Receipt.Execution != "generated" {
		p.Errorf("scored %q and %q, want interpreted and generated", before.Receipt.Execution, after.Receipt.Execution)
	}
	if len(before.Items) < 50 || len(before.Items) != len(after.Items) {
		p.Fatalf("%d and %d items", len(before.Items), len(after.Items))
	}
	trained := p.trained()
	for i, b := range before.Items {
		if a := after.Items[i]; a != b {
			p.Errorf("item %d is %v interpreted and %v generated", i, b, a)
		}
		want, ok := trained[b.ID]
		if got, err := b.Score.Float64(); err != nil || !ok || !(math.Abs(got-want) <= 1e-9) {
			p.Errorf("item %d is %v, and LightGBM gives %v", i, b, want)
		}
	}
}

// trained reads LightGBM's scores of the feed.
func (p *page) trained() map[string]float64 {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "docs", "models", "feed.ndjson"))
	if err != nil {
		p.Fatal(err)
	}
	scores := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		var r struct {
			ID    string
			Score float64
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			p.Fatal(err)
		}
		scores[r.ID] = r.Score
	}
	return scores
}

// page is a page of docs that is carried out in a directory that looks like
// the root of a checkout.
type page struct {
	*testing.T
	ctx     context.Context
	name    string // from the root of the checkout
	root    string // of the checkout
	dir     string
	addrs   []string          // of this run, each before that of the page
	tools   map[string]func() // commands that the test does itself
	shown   *strings.Replacer // of this run's addresses by those of the page
	real    *strings.Replacer // and the other way round
	cluster *exec.Cmd         // that runs, or nil
	ended   chan error        // gets what it ended with
	log     string            // what it printed
}

// newPage makes the directory: what pages copy from docs, the sample, and
// bin/millrace with addresses that are free.
func newPage(ctx context.Context, t *testing.T, name string) *page {
	t.Helper()
	p := &page{T: t, ctx: ctx, name: name, dir: t.TempDir()}
	var err error
	if p.root, err = filepath.Abs("../.."); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.CopyFS(filepath.Join(p.dir, "docs"), os.DirFS(filepath.Join(p.root, "docs"))),
		os.MkdirAll(filepath.Join(p.dir, "bin"), 0o755),
		os.Symlink(filepath.Join(p.root, "internal"), filepath.Join(p.dir, "internal")),
		os.Symlink(filepath.Join(p.root, "api"), filepath.Join(p.dir, "api")),
		os.Symlink(os.Args[0], filepath.Join(p.dir, "bin", "built")),
	); err != nil {
		t.Fatal(err)
	}
	http, grpc, kafka, etcd, admin := clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t)
	p.addrs = []string{http, "127.0.0.1:8080", grpc, "127.0.0.1:9090", kafka, "127.0.0.1:9092", etcd, "127.0.0.1:2379", admin, "127.0.0.1:6060", "--replace " + p.root, "--replace ."}
	p.rename()
	p.write("bin/millrace", fmt.Appendf(nil, `#!/bin/sh
case "$1 $2" in
"dev "*) set -- "$@" --http %s --grpc %s --kafka-listen %s --etcd-listen %s --admin %s ;;
"load "* | "export "*) set -- "$@" --brokers %[3]s ;;
"doctor ") set -- "$@" --etcd %[4]s --brokers %[3]s --grpc %[2]s ;;
"feed shadows") set -- "$@" --brokers %[3]s ;;
"experiment status") set -- "$@" --etcd %[4]s --brokers %[3]s ;;
"feed define" | "feed rollback" | "feed history" | "model push" | "model list" | "model history" | "model rollback" | "model drop" | "model release" | "model pull" | "node "* | "cluster "* | "experiment "*) set -- "$@" --etcd %[4]s ;;
"feed "* | "why "*) set -- "$@" --addr %[2]s ;;
esac
MILLRACE_MAIN=1 exec bin/built "$@"
`, http, grpc, kafka, etcd, admin))
	if err := os.Chmod(filepath.Join(p.dir, "bin", "millrace"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("what the cluster printed:\n%s", p.log)
		}
	})
	return p
}

// rename has further addresses of the page stand for those of this run: pairs
// of the page's and this run's.
func (p *page) rename(more ...string) {
	for i := 0; i < len(more); i += 2 {
		p.addrs = append(p.addrs, more[i+1], more[i])
	}
	p.shown = strings.NewReplacer(p.addrs...)
	back := slices.Clone(p.addrs)
	slices.Reverse(back)
	p.real = strings.NewReplacer(back...)
}

func (p *page) write(name string, text []byte) {
	p.Helper()
	file := filepath.Join(p.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o644)); err != nil {
		p.Fatal(err)
	}
}

// block is a fenced block of a page.
type block struct {
	line       int
	info, text string
}

var fence = regexp.MustCompile("(?ms)^```([^\n]+)\n(.*?)^```$")

func (p *page) blocks() (all []block) {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(p.root, p.name))
	if err != nil {
		p.Fatal(err)
	}
	for _, m := range fence.FindAllSubmatchIndex(text, -1) {
		all = append(all, block{1 + strings.Count(string(text[:m[0]]), "\n"), string(text[m[2]:m[3]]), string(text[m[4]:m[5]])})
	}
	return all
}

// commandLine is a command of a console and what it prints.
type commandLine struct {
	line       int
	text, want string
}

func (b *block) commands() (all []commandLine) {
	more := false
	for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
		text, starts := strings.CutPrefix(line, "$ ")
		switch {
		case starts:
			all = append(all, commandLine{line: b.line + 1 + i, text: text})
		case more:
			all[len(all)-1].text += "\n" + line
		case len(all) > 0:
			all[len(all)-1].want += line + "\n"
		}
		more = strings.HasSuffix(line, "\\") && (starts || more)
	}
	return all
}

// asks matches commands whose answer the cluster may still be catching up with:
// they ask, or show what they would do.
var asks = regexp.MustCompile(`^(bin/millrace (feed|why|backup status|node list|cluster (status|plan)|experiment (list|history|status))|curl|go run|[^ ]*python3?)( |$)|^bin/millrace node [a-z]+( node-[0-9]+)+$`)

// run runs a command and holds what it prints against the page. What is true
// only once the cluster has caught up is asked again until then.
func (p *page) run(c commandLine) {
	p.Helper()
	switch c.text {
	case "make build": // the test itself is the binary
		return
	case "make dev":
		p.stop()
		p.start(c, "bin/millrace dev")
		return
	case "make -C ranking build":
		p.build(c, "ranking")
		return
	case "ranking/bin/millrace dev":
		p.stop()
		p.start(c, c.text)
		return
	case "kill %1":
		p.stop()
		return
	}
	if line, ok := strings.CutSuffix(c.text, " &"); ok {
		p.start(c, p.real.Replace(line))
		return
	}
	if do, ok := p.tools[strings.Fields(c.text)[0]]; ok {
		do()
		return
	}
	fails := strings.HasPrefix(c.want, "millrace: ") || strings.Contains(c.want, "\nmillrace: ")
	var got string
	done := func() bool {
		cmd := exec.CommandContext(p.ctx, "sh", "-c", p.real.Replace(c.text))
		cmd.Dir = p.dir
		if pkg, ok := strings.CutPrefix(c.text, "go run ./"); ok { // it needs the module
			cmd = exec.CommandContext(p.ctx, "sh", "-c", "go run "+filepath.Join(p.dir, pkg, "*.go"))
			cmd.Dir = p.root
		}
		out, err := cmd.CombinedOutput()
		got = p.shown.Replace(string(out))
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			p.Fatalf("%s:%d: %v", p.name, c.line, err)
		}
		return fails == (err != nil) && c.matches(got)
	}
	deadline := time.Now()
	if asks.MatchString(c.text) {
		deadline = deadline.Add(clitest.Patience)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		if time.Now().After(deadline) {
			p.Fatalf("%s:%d: $ %s\nprints:\n%s\nand the page shows:\n%s", p.name, c.line, c.text, got, c.want)
		}
		<-tick.C
	}
}

// matches compares what was printed with the page, on which ... stands for any
// text of a line, and alone for any lines.
func (c *commandLine) matches(got string) bool {
	var re strings.Builder
	re.WriteString(`^`)
	for line := range strings.Lines(c.want) {
		if line == "...\n" {
			re.WriteString(`(?:.*\n)*`)
			continue
		}
		if line == "heard by 1 broker\n" { // on a busy machine it may hear later than a command waits
			re.WriteString(`(?:heard by 1 broker|NOT (?:HEARD|TAKEN OVER) by broker-1.*)\n`)
			continue
		}
		re.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " \n")), `\.\.\.`, `.*`) + ` *\n`)
	}
	return regexp.MustCompile(re.String() + `$`).MatchString(got)
}

// build builds the binary of a module that the page made. It becomes bin/built,
// which both bin/millrace and the module's run with addresses that are free.
func (p *page) build(c commandLine, module string) {
	p.Helper()
	dir := filepath.Join(p.dir, module)
	if out, err := exec.CommandContext(p.ctx, "make", "-C", dir, "build").CombinedOutput(); err != nil {
		p.Fatalf("%s:%d: %v\n%s", p.name, c.line, err, out)
	}
	own, built := filepath.Join(dir, "bin", "millrace"), filepath.Join(p.dir, "bin", "built")
	if err := errors.Join(os.Remove(built), os.Rename(own, built), os.Symlink(filepath.Join(p.dir, "bin", "millrace"), own)); err != nil {
		p.Fatal(err)
	}
}

// start starts the cluster and waits until it has printed what the page shows.
func (p *page) start(c commandLine, line string) {
	p.Helper()
	name := filepath.Join(p.dir, "cluster.log")
	log, err := os.Create(name)
	if err != nil {
		p.Fatal(err)
	}
	defer log.Close()
	p.cluster = exec.Command("sh", "-c", "exec "+line)
	p.cluster.Dir, p.cluster.Stdout, p.cluster.Stderr = p.dir, log, log
	if err := p.cluster.Start(); err != nil {
		p.cluster = nil
		p.Fatal(err)
	}
	p.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan error) { ended <- cmd.Wait() }(p.cluster, p.ended)
	clitest.WaitFor(p.ctx, p.T, "the cluster to print what the page shows", func() bool {
		text, err := os.ReadFile(name)
		if err != nil {
			p.Fatal(err)
		}
		p.log = string(text)
		select {
		case err := <-p.ended:
			p.cluster = nil
			p.Fatalf("%s:%d: the cluster ended by itself: %v", p.name, c.line, err)
		default:
		}
		return c.matches(p.shown.Replace(p.log))
	})
}

// stop ends the cluster as Ctrl-C does.
func (p *page) stop() {
	p.Helper()
	if p.cluster == nil {
		return
	}
	err := errors.Join(p.cluster.Process.Signal(os.Interrupt), <-p.ended)
	if err != nil {
		p.Errorf("the cluster after Ctrl-C: %v", err)
	}
	p.cluster = nil
}

// answer is what is compared of a feed.
type answer struct {
	Items []struct {
		ID    string
		Score json.Number
	}
	Receipt struct{ Execution string }
}

func (p *page) answer(name string) (a answer) {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.Fatal(err)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		p.Fatalf("%s: %v", name, err)
	}
	return a
}
