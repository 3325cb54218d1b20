package main

import (
	"bytes"
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
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	c := config{out: os.Stdout, patience: 20 * time.Second}
	flag.IntVar(&c.n, "n", 20, "faults, of all packages together")
	flag.Uint64Var(&c.seed, "seed", rand.Uint64()>>32, "draws the faults; the same again draws the same ones")
	flag.StringVar(&c.with, "with", "", "packages, by commas, whose tests are run besides on what a package's own tests leave")
	flag.BoolVar(&c.long, "long", false, "what a package's own short tests leave is judged by all of its tests, and by all of those that -with names")
	flag.IntVar(&c.parallel, "parallel", runtime.NumCPU(), "faults that are tried at once")
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
	long     bool          // run long tests, too, on what the short ones of a package leave
	parallel int           // how many faults are tried at once; 0: one
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
	pkg     *pkg
	by      string // the test that noticed it, or what else did; empty: nothing
	late    bool   // the package's own short tests did not notice it
	reached bool   // a test runs its code
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
	all, err := c.judge(ctx, tmp, pkgs)
	return errors.Join(c.report(all), err) // after an error, what is known so far
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

// judge runs tests on each fault, and prints what became of it: first the short tests of the
// fault's own package, and then, on what these leave, those that --with and --long name. An
// error comes with the results so far.
func (c *config) judge(ctx context.Context, tmp string, pkgs []*pkg) (all []result, err error) {
	again := c.with != "" || c.long
	var left []result
	for _, p := range pkgs {
		if len(p.sites) == 0 {
			continue
		}
		var suites []*suite
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			t, err := c.suite(ctx, tmp, []*pkg{p}, p, true)
			if err != nil {
				return all, err
			}
			suites = []*suite{t}
		}
		var some []result
		for _, s := range p.sites { // building the tests has removed the faults that do not build
			some = append(some, result{site: s, pkg: p})
		}
		err := c.round(ctx, suites, some, !again)
		for _, v := range some {
			if v.by == "" && again {
				left = append(left, v)
			} else {
				all = append(all, v)
			}
		}
		if err != nil {
			return append(all, left...), err
		}
	}
	if len(left) == 0 {
		return all, nil
	}
	var of, faulty []*pkg
	for _, v := range left {
		if !slices.Contains(faulty, v.pkg) {
			faulty = append(faulty, v.pkg)
			v.pkg.sites = nil
		}
		v.pkg.sites = append(v.pkg.sites, v.site)
	}
	if c.long {
		of = slices.DeleteFunc(slices.Clone(faulty), func(p *pkg) bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 })
	}
	if c.with != "" {
		more, err := c.list(ctx, strings.Split(c.with, ","))
		if err != nil {
			return append(all, left...), err
		}
		of = append(of, more...)
	}
	var suites []*suite
	for _, q := range of {
		t, err := c.suite(ctx, tmp, faulty, q, !c.long)
		if err != nil {
			return append(all, left...), err
		}
		suites = append(suites, t)
	}
	for i := range left {
		left[i].late = true
	}
	err = c.round(ctx, suites, left, true)
	return append(all, left...), err
}

// round runs those tests on each fault that reach it, several faults at once, notes in the
// results which test notices it, and prints that. What nothing notices is printed in the last
// round.
func (c *config) round(ctx context.Context, suites []*suite, all []result, last bool) error {
	var mu sync.Mutex
	var some errgroup.Group
	some.SetLimit(max(1, c.parallel))
	for i := range all {
		some.Go(func() error {
			v := &all[i]
			for _, t := range suites {
				by, reached, err := t.notices(ctx, v.pkg.at[v.site])
				if err != nil {
					return err
				}
				v.reached = v.reached || reached
				if v.by = by; by != "" {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			told := v.by
			switch {
			case v.by == "" && !last:
				return nil
			case !v.reached:
				told = "NOT NOTICED: " + unreached
			case v.by == "":
				told = "NOT NOTICED"
			}
			rel, _ := filepath.Rel(c.root(), v.File)
			fmt.Fprintf(c.out, "%s:%d: %s: %s\n    %s\n", rel, v.Line, v.Kind, v.Text, told)
			return nil
		})
	}
	return some.Wait()
}

func (c *config) root() string {
	dir, _ := filepath.Abs(c.dir)
	return dir
}

var compileError = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: `)

// build builds the tests of the package tested with the faults of pkgs. It removes faults that
// do not build from their sites.
func (c *config) build(ctx context.Context, tmp string, pkgs []*pkg, tested, binary string) error {
	for {
		overlay := struct{ Replace map[string]string }{map[string]string{}}
		lines := map[string][]*site{} // by FILE:LINE, as errors of the compiler have it
		args := []string{"test", "-c", "-vet=off"}
		var errs []error
		put := func(path string, text []byte) (file string) {
			file = filepath.Join(tmp, fmt.Sprintf("overlay-%d.go", len(overlay.Replace)))
			overlay.Replace[path] = file
			errs = append(errs, os.WriteFile(file, text, 0o666))
			return file
		}
		for _, p := range pkgs {
			args = append(args, "-gcflags="+p.ImportPath+"=-e")
			put(filepath.Join(p.Dir, "zz_mutants.go"), switches(p.Name))
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
				file := put(path, text)
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
		}
		text, err := json.Marshal(overlay)
		file := filepath.Join(tmp, "overlay.json")
		if err := errors.Join(append(errs, err, os.WriteFile(file, text, 0o666))...); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", append(args, "-overlay", file, "-o", binary, tested)...)
		cmd.Dir = c.dir
		out, err := cmd.CombinedOutput()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		removed := false
		for _, at := range compileError.FindAllStringSubmatch(string(out), -1) {
			file := at[1]
			if !filepath.IsAbs(file) { // go shortens what is near its working directory
				file = filepath.Join(c.root(), file)
			}
			for _, bad := range lines[file+":"+at[2]] {
				for _, p := range pkgs {
					p.sites = slices.DeleteFunc(p.sites, func(s *site) bool { removed = removed || s == bad; return s == bad })
				}
			}
		}
		if !removed {
			return fmt.Errorf("go test -c: %w\n%.2000s", err, out)
		}
	}
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
	if c.with != "" || c.long {
		early := 0
		for _, v := range all {
			if v.by != "" && !v.late {
				early++
			}
		}
		fmt.Fprintf(c.out, "%5.0f %%  %d of %d  by the short tests of their own package\n", 100*float64(early)/float64(max(1, len(all))), early, len(all))
	}
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
