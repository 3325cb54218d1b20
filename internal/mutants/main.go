package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	c := config{out: os.Stdout, patience: 20 * time.Second}
	flag.IntVar(&c.n, "n", 20, "faults, of all packages together")
	flag.Uint64Var(&c.seed, "seed", rand.Uint64()>>32, "draws the faults; the same again draws the same ones")
	flag.StringVar(&c.with, "with", "", "packages, by commas, whose tests are run besides on what a package's own tests leave")
	flag.IntVar(&c.least, "least", 0, "fails where fewer than so many of a hundred are noticed")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "mutants [flags] PACKAGE...\n\nPuts faults into packages, one at a time, and tells which no test noticed.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	c.packages = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// config is what the command line says. The first five are the arguments and flags.
type config struct {
	packages []string
	n        int           // how many faults to draw
	seed     uint64        // of the draw
	with     string        // packages whose tests are run too, separated by commas
	least    int           // how many of a hundred faults tests must notice
	dir      string        // the directory of the module; empty: the working directory
	patience time.Duration // tests that run longer than this plus five times their usual time are taken to run for ever
	out      io.Writer
}

// pkg is a package. The exported fields are what go list prints of it.
type pkg struct {
	Dir, ImportPath, Name string
	GoFiles, TestGoFiles  []string
	XTestGoFiles          []string

	src   map[string][]byte // the Go files without tests, by path
	sites []*site           // at first all sites of the package; after draw, only those that it has drawn
	at    map[*site]int     // the numbers of the sites that were drawn, from 1; unique over all packages
}

// result is what became of a fault.
type result struct {
	*site
	pkg *pkg
	by  string // the test that noticed it, or what else did; empty: nothing
}

// unreached is printed for a fault whose code no test runs.
const unreached = "no test comes by"

func (c *config) run(ctx context.Context) error {
	if len(c.packages) == 0 {
		return errors.New("no package is named: name some, such as ./broker")
	}
	pkgs, err := c.list(ctx, c.packages)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "seed %d draws %d faults\n", c.seed, c.n)
	c.draw(pkgs)
	tmp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var all []result
	for _, p := range pkgs {
		if len(p.sites) == 0 {
			continue
		}
		some, err := c.judge(ctx, tmp, p)
		all = append(all, some...)
		if err != nil { // report what is known so far
			return errors.Join(c.report(all), fmt.Errorf("%s: %w", p.ImportPath, err))
		}
	}
	return c.report(all)
}

// list returns the packages that patterns name, with their sources and the sites in them.
func (c *config) list(ctx context.Context, patterns []string) (all []*pkg, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=Dir,ImportPath,Name,GoFiles,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Dir, cmd.Stderr = c.dir, os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for in := json.NewDecoder(bytes.NewReader(text)); ; {
		p := &pkg{src: map[string][]byte{}}
		if err := in.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			if p.src[path], err = os.ReadFile(path); err != nil {
				return nil, err
			}
			sites, err := sitesOf(path, p.src[path])
			if err != nil {
				return nil, err
			}
			p.sites = append(p.sites, sites...)
		}
		all = append(all, p)
	}
}

// draw draws c.n sites at random, of all packages together, and leaves in the sites of each
// package only those that were drawn. No two of them overlap.
func (c *config) draw(pkgs []*pkg) {
	r := rand.New(rand.NewPCG(c.seed, 0))
	type place struct {
		p *pkg
		s *site
	}
	var all []place
	for _, p := range pkgs {
		for _, s := range p.sites {
			all = append(all, place{p, s})
		}
		p.sites, p.at = nil, map[*site]int{}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	drawn := 0
	for _, at := range all {
		if drawn == c.n {
			return
		}
		if slices.ContainsFunc(at.p.sites, func(s *site) bool { return s.File == at.s.File && s.from < at.s.to && at.s.from < s.to }) {
			continue
		}
		drawn++
		at.p.sites = append(at.p.sites, at.s)
		at.p.at[at.s] = drawn
	}
}

// judge runs the tests of a package on each of its faults, and prints what became of each. An
// error comes with the results so far.
func (c *config) judge(ctx context.Context, tmp string, p *pkg) (all []result, err error) {
	tests, err := c.tests(ctx, tmp, p)
	if err != nil {
		return nil, err
	}
	for _, s := range p.sites { // c.tests has removed the faults that did not build
		v := result{site: s, pkg: p, by: ""}
		for i := range tests {
			t := &tests[i]
			if !t.reached[p.at[s]] {
				continue
			}
			by, err := t.notices(ctx, p.at[s])
			if err != nil {
				return all, err
			}
			if v.by = by; by != "" {
				break
			}
		}
		told := cmp.Or(v.by, "NOT NOTICED")
		if !slices.ContainsFunc(tests, func(t suite) bool { return t.reached[p.at[s]] }) {
			told = "NOT NOTICED: " + unreached
		}
		rel, _ := filepath.Rel(c.root(), s.File)
		fmt.Fprintf(c.out, "%s:%d: %s: %s\n    %s\n", rel, s.Line, s.Kind, s.Text, told)
		all = append(all, v)
	}
	return all, nil
}

func (c *config) root() string {
	dir, _ := filepath.Abs(c.dir)
	return dir
}

// suite is a test binary, with all faults of a package built into it.
type suite struct {
	binary, dir string
	skip        string        // a pattern of the tests that fail without a fault, too; "": none
	reached     map[int]bool  // the numbers of the faults whose code tests run
	within      time.Duration // how long the tests may run
}

// tests builds and tries the tests of a package, and those of the packages of --with.
func (c *config) tests(ctx context.Context, tmp string, p *pkg) (all []suite, err error) {
	of := []*pkg{p}
	if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
		of = nil
	}
	if c.with != "" {
		more, err := c.list(ctx, strings.Split(c.with, ","))
		if err != nil {
			return nil, err
		}
		for _, q := range more {
			if q.ImportPath != p.ImportPath {
				of = append(of, q)
			}
		}
	}
	for i, q := range of {
		t := suite{binary: filepath.Join(tmp, fmt.Sprintf("tests-%d", i)), dir: q.Dir, within: c.patience}
		if err := c.build(ctx, tmp, p, q.ImportPath, t.binary); err != nil {
			return nil, err
		}
		if err := t.try(ctx, tmp); err != nil {
			return nil, fmt.Errorf("the tests of %s: %w", q.ImportPath, err)
		}
		if t.skip != "" {
			fmt.Fprintf(c.out, "%s: fail without a fault, and are not run: %s\n", q.ImportPath, t.skip)
		}
		all = append(all, t)
	}
	return all, nil
}

var compileError = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: `)

// build builds the tests of the package tested with the faults of p. It removes faults that do
// not build from p.sites.
func (c *config) build(ctx context.Context, tmp string, p *pkg, tested, binary string) error {
	for {
		overlay := struct{ Replace map[string]string }{map[string]string{}}
		put := func(path string, text []byte) (file string, err error) {
			file = filepath.Join(tmp, fmt.Sprintf("overlay-%d.go", len(overlay.Replace)))
			overlay.Replace[path] = file
			return file, os.WriteFile(file, text, 0o666)
		}
		lines := map[string][]*site{} // by FILE:LINE, as errors of the compiler have it
		_, err := put(filepath.Join(p.Dir, "zz_mutants.go"), switches(p.Name))
		errs := []error{err}
		for path, src := range p.src {
			at := map[*site]int{}
			for _, s := range p.sites {
				if s.File == path {
					at[s] = p.at[s]
				}
			}
			if len(at) == 0 {
				continue
			}
			text := faulty(src, at)
			file, err := put(path, text)
			errs = append(errs, err)
			for s, id := range at {
				line := 0
				for _, mark := range []string{fmt.Sprintf("mutantOn(%d)", id), fmt.Sprintf("mutantPick(%d,", id)} {
					if i := bytes.Index(text, []byte(mark)); i >= 0 {
						line = 1 + bytes.Count(text[:i], []byte("\n"))
					}
				}
				key := fmt.Sprintf("%s:%d", file, line)
				lines[key] = append(lines[key], s)
			}
		}
		text, err := json.Marshal(overlay)
		file := filepath.Join(tmp, "overlay.json")
		if err := errors.Join(append(errs, err, os.WriteFile(file, text, 0o666))...); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", file, "-gcflags="+p.ImportPath+"=-e", "-o", binary, tested)
		cmd.Dir = c.dir
		out, err := cmd.CombinedOutput()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		before := len(p.sites)
		for _, at := range compileError.FindAllStringSubmatch(string(out), -1) {
			for _, bad := range lines[at[1]+":"+at[2]] {
				p.sites = slices.DeleteFunc(p.sites, func(s *site) bool { return s == bad })
			}
		}
		if len(p.sites) == before {
			return fmt.Errorf("go test -c: %w\n%.2000s", err, out)
		}
	}
}

var (
	failed  = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	crashed = regexp.MustCompile(`(?m)^(panic|fatal error): .*`)
	oneTest = regexp.MustCompile(`^\w+$`)
)

// try runs the tests without a fault, to find out how long they take, which of them fail
// anyway, and which faults are in code that they run.
func (t *suite) try(ctx context.Context, tmp string) error {
	var skip []string
	passed := false
	for range 3 {
		began := time.Now()
		out, err := t.run(ctx, time.Hour, "MILLRACE_MUTANT=0", "-test.failfast=false")
		if err == nil {
			t.within += 5 * time.Since(began)
			passed = true
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		bad := failed.FindAllStringSubmatch(out, -1)
		if len(bad) == 0 {
			return fmt.Errorf("%w: %.1000s", err, out)
		}
		for _, name := range bad {
			skip = append(skip, name[1])
		}
		t.skip = "^(" + strings.Join(skip, "|") + ")$"
	}
	if !passed {
		return fmt.Errorf("they fail without a fault: %s", t.skip)
	}
	file := filepath.Join(tmp, "reached")
	if err := os.RemoveAll(file); err != nil {
		return err
	}
	if _, err := t.run(ctx, t.within, "MILLRACE_MUTANTS_REACHED="+file, "-test.failfast=false"); ctx.Err() != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	t.reached = map[int]bool{}
	for _, line := range strings.Fields(string(text)) {
		if id, err := strconv.Atoi(line); err == nil {
			t.reached[id] = true
		}
	}
	return nil
}

// notices returns the test that notices a fault; "" for none. A test that fails must fail a
// second time, alone: one that failed because the machine was busy passes then. In that case
// all tests are run once more, and what notices the fault in that run counts.
func (t *suite) notices(ctx context.Context, id int) (by string, err error) {
	by, err = t.noticedBy(ctx, id)
	if by == "" || err != nil {
		return "", err
	}
	var alone []string
	if oneTest.MatchString(by) {
		alone = []string{"-test.run", "^" + by + "$"}
	}
	if same, err := t.noticedBy(ctx, id, alone...); same != "" || err != nil {
		return by, err
	}
	return t.noticedBy(ctx, id)
}

// noticedBy runs the tests once with a fault and returns what notices it: the first test that
// fails, or the text of a panic, or a text that says that the tests do not end; "" if nothing
// does. some are further arguments of the test binary.
func (t *suite) noticedBy(ctx context.Context, id int, some ...string) (by string, err error) {
	out, err := t.run(ctx, t.within, fmt.Sprint("MILLRACE_MUTANT=", id), append(some, "-test.failfast=true")...)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return "", nil
	case errors.Is(err, context.DeadlineExceeded):
		return "tests do not end", nil
	}
	if m := failed.FindStringSubmatch(out); m != nil {
		return m[1], nil
	}
	if first := crashed.FindString(out); first != "" {
		return first, nil
	}
	return "the tests fail: " + err.Error(), nil
}

// run runs the tests, and returns what they print. After the time within it kills them with
// all processes that they started.
func (t *suite) run(ctx context.Context, within time.Duration, env string, more ...string) (string, error) {
	limit, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	args := append([]string{"-test.short", "-test.skip", t.skip}, more...)
	if t.skip == "" {
		args = append([]string{"-test.short"}, more...)
	}
	cmd := exec.CommandContext(limit, t.binary, args...)
	cmd.Dir, cmd.Env = t.dir, append(os.Environ(), env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if limit.Err() != nil {
		err = limit.Err()
	}
	return out.String(), err
}

// report prints how many faults were noticed, by package, by kind and together. It returns an
// error if they are fewer than --least.
func (c *config) report(all []result) error {
	count := func(key func(result) string) {
		noticed, of := map[string]int{}, map[string]int{}
		for _, v := range all {
			of[key(v)]++
			if v.by != "" {
				noticed[key(v)]++
			}
		}
		for _, k := range slices.Sorted(maps.Keys(of)) {
			fmt.Fprintf(c.out, "%5.0f %%  %d of %d  %s\n", 100*float64(noticed[k])/float64(of[k]), noticed[k], of[k], k)
		}
	}
	fmt.Fprintln(c.out)
	count(func(v result) string { return v.pkg.ImportPath })
	fmt.Fprintln(c.out)
	count(func(v result) string { return v.Kind })
	fmt.Fprintln(c.out)
	count(func(result) string { return "together" })
	noticed := 0
	for _, v := range all {
		if v.by != "" {
			noticed++
		}
	}
	if 100*noticed < c.least*len(all) {
		return fmt.Errorf("%d of %d faults were noticed, fewer than %d in a hundred", noticed, len(all), c.least)
	}
	return nil
}
