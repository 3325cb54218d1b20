package cli

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/command"
)

// commands calls do for every command, by its path without the program's name.
func commands(c *cobra.Command, do func(path string, c *cobra.Command)) {
	for _, sub := range c.Commands() {
		do(strings.TrimPrefix(sub.CommandPath(), "millrace "), sub)
		commands(sub, do)
	}
}

// Every command that opens the cluster gives up while etcd is away, says so and
// names the way out.
func TestCommandsGiveUpWithoutEtcd(t *testing.T) {
	t.Parallel()
	args := map[string][]string{
		"cluster show": nil, "cluster assign": {"--nodes", "n1"}, "cluster restore": {"--data", t.TempDir()},
		"model push": {"x"}, "model pull": {"x"}, "model list": nil, "model history": {"x"}, "model rollback": {"x"}, "model drop": {"x", "1"}, "model release": {"x", "1"}, "model replay": {"x", "--exposures", "x"},
		"feed define": {"x.yaml"}, "feed list": nil, "feed show": {"x"}, "feed diff": {"x.yaml"}, "feed history": {"x"}, "feed rollback": {"x"}, "feed drop": {"x"},
		"experiment define": {"x.yaml"}, "experiment diff": {"x.yaml"}, "experiment list": nil, "experiment show": {"x"}, "experiment start": {"x"},
		"experiment ramp": {"x", "--share", "1"}, "experiment pause": {"x"}, "experiment hold": {"x"}, "experiment resume": {"x"}, "experiment stop": {"x"}, "experiment history": {"x"}, "experiment drop": {"x"},
		"experiment status": {"x"}, "experiment wait": {"x"}, "experiment rule": {"x"}, "experiment explain": {"--feed", "x", "--viewer", "x"},
		"trace":        {"--viewer", "x"},
		"cluster plan": nil, "cluster apply": nil, "cluster status": nil, "cluster explain": {"1"}, "cluster roll": {"--exec", "true"},
		"cluster page-keys": nil, "cluster history": nil, "cluster pause": nil, "cluster resume": nil, "cluster cancel": nil, "cluster rollback": nil,
		"node list": nil, "node add": {"x"}, "node drain": {"x"}, "node replace": {"x", "y"}, "node remove": {"x"}, "node restart": {"x", "--exec", "true"},
		"partition check": {"1"}, "partition diff": {"1"}, "partition quarantine": {"1", "--node", "n1", "--why", "x"}, "partition release": {"1", "--node", "n1"},
		"timeline get": {"x"}, "timeline history": {"x"}, "record delete": {"x", "--entity", "y"}, "cache drop": {"--entity", "x"}, "ingest pause": {"n1", "--for", "1m"}, "ingest resume": {"n1"}, "deadletters replay": {"1"}, "state": nil,
	}
	elsewhere := map[string]string{
		"demo": "it starts an etcd", "dev": "it starts an etcd", "doctor": "see TestDoctorWhileKafkaOrEtcdIsAway",
		"load": "see TestReviewOfASchema", "schema check": "see TestReviewOfASchema", "schema define": "it asks the log first", "schema retire": "see TestRetireKeepsReaders", "backup adopt": "a bucket comes first",
	}
	away := clitest.FreeAddr(t)
	var all sync.WaitGroup
	commands(root(), func(path string, c *cobra.Command) {
		if c.Flag("etcd") == nil || c.HasSubCommands() || elsewhere[path] != "" {
			return
		}
		more, ok := args[path]
		if !ok {
			t.Errorf("%s is to be tested", path)
			return
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), clitest.Patience)
			defer cancel()
			c := root()
			c.SetArgs(slices.Concat(strings.Fields(path), []string{"--etcd", away}, more))
			want := "no etcd answered at [" + away + "] within 10s"
			if err := c.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--etcd") {
				t.Errorf("%s: %v", path, err)
			}
		})
	})
	all.Wait()
}

// What a command cannot take is refused with how it is used.
func TestErrorsOfTheLineShowTheUsage(t *testing.T) {
	for line, want := range map[string]string{
		"model release lin":          "usage: millrace model release NAME VERSION",
		"schema check":               "usage: millrace schema check FILE.avsc",
		"cluster show --wrong":       "usage: millrace cluster show",
		"cluster assign":             "usage: millrace cluster assign --nodes a,b,c",
		"partitioner":                "usage: millrace partitioner --config FILE",
		"model dorp lin":             "did you mean drop?",
		"model seal /does/not/exist": "!usage",
	} {
		c := root()
		c.SetArgs(strings.Fields(line))
		err := command.Run(t.Context(), c)
		text, not := strings.CutPrefix(want, "!")
		if err == nil || strings.Contains(err.Error(), text) == not {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Refusals name the flags and commands by which one goes on.
func TestRefusalsNameFlagsAndCommands(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	v, _, err := s.Feeds.Publish(t.Context(), "news", "", []byte("name: news\nmodel: recency"), "test")
	s.Check(err)
	s.Check(s.Feeds.Serve(t.Context(), v, nil, "test"))
	s.Answer("n1", clitest.Admits)
	_, err = s.run("model", "push", s.RatePack("1", "likes"), "--timeout", "1m")
	s.Check(err)
	on := func(args ...string) error {
		c := root()
		c.SetArgs(append(args, "--etcd", s.Etcd[0], "--cluster", "test"))
		return command.Run(t.Context(), c)
	}
	for want, args := range map[string][]string{
		"--force":                   {"cluster", "assign", "--nodes", "n1,nobody", "--replace", "--wait", "0s"},
		"--replace":                 {"cluster", "assign", "--nodes", "n1"},
		"millrace model push PACK":  {"model", "rollback", "rate"},
		"millrace model list":       {"model", "history", "nothing"},
		"millrace feed define FILE": {"feed", "rollback", "news"},
		"millrace feed list":        {"feed", "history", "nothing"},
	} {
		if err := on(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s: %v", args, want, err)
		}
	}
	s.Check(on("cluster", "assign", "--nodes", "n1,n2,n3", "--replicas", "1", "--replace", "--force"))
	if err := on("cluster", "assign", "--nodes", "n1", "--replicas", "1", "--replace"); err == nil || !strings.Contains(err.Error(), "--allow-shrink") {
		t.Errorf("a map that shrinks: %v", err)
	}
}

var (
	namesCommand = regexp.MustCompile(`\bmillrace ([a-z]+)(?: ([a-z]+))?`)
	namesFlag    = regexp.MustCompile(`(?:^|[ (])--([a-z][a-z-]+)`)
)

// Every command and flag that a message names exists.
func TestMessagesNameWhatExists(t *testing.T) {
	paths, flags := map[string]*cobra.Command{}, map[string]bool{"help": true, "version": true}
	commands(root(), func(path string, c *cobra.Command) {
		paths[path] = c
		for _, m := range namesFlag.FindAllStringSubmatch(c.LocalFlags().FlagUsages()+c.InheritedFlags().FlagUsages(), -1) {
			flags[m[1]] = true
		}
	})
	messages(t, filepath.Join("..", ".."), func(where, text string) {
		for _, m := range namesCommand.FindAllStringSubmatch(text, -1) {
			c := paths[m[1]] // none in prose, such as: millrace is
			if c != nil && c.HasSubCommands() && m[2] != "" && paths[m[1]+" "+m[2]] == nil {
				t.Errorf("%s: there is no %q: %q", where, m[0], text)
			}
		}
		for _, m := range namesFlag.FindAllStringSubmatch(text, -1) {
			if !flags[m[1]] {
				t.Errorf("%s: no command has --%s: %q", where, m[1], text)
			}
		}
	})
}

// messages calls do for every string of the module's Go files but tests,
// benchmarks, which start programs of others, and generated code.
func messages(t *testing.T, root string, do func(where, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch base := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (base == "bench" || base == "testdata" || base == "bin" || base == "data" || strings.HasPrefix(base, ".") && base != ".."):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go"):
			return nil
		}
		at := token.NewFileSet()
		syntax, err := parser.ParseFile(at, name, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				do(fmt.Sprint(at.Position(l.Pos())), text)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A cluster that is new is told from one that etcd has lost, and commands print
// nothing as a role logs it.
func TestANewClusterIsToldFromALostOne(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	c := startClinic(t)
	out, err := output(c.show()...)
	if err == nil || strings.Contains(out, "level=") || strings.Contains(out, "last good") || strings.Count(out, "etcd holds nothing") != 1 || !strings.Contains(out, "millrace cluster assign") {
		t.Errorf("a new cluster: %v\n%s", err, out)
	}
	c.ok()
	c.lose()
	clitest.WaitFor(c.ctx, t, "the loss to be told", func() bool {
		out, err = output(c.show()...)
		return strings.Contains(out, `"node-1"`) && strings.Contains(out, "remember assignment 1")
	})
	if err == nil || strings.Contains(out, "level=") || !strings.Contains(out, "millrace cluster restore") || strings.Contains(out, "of a new cluster") {
		t.Errorf("a lost cluster: %v\n%s", err, out)
	}
}
