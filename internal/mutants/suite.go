package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// suite is a test binary, with all faults of a package built into it, and what is known of its
// tests.
type suite struct {
	binary, dir string
	short       bool
	patience    time.Duration
	tests       []*test // that pass without a fault, the fastest first
}

// test is a test of a suite.
type test struct {
	name    string
	takes   time.Duration
	reached map[int]bool // the numbers of the faults whose code it runs
	why     string       // the end of what it printed, where it fails without a fault; else ""
}

// suite builds the tests of a package with the faults of pkgs, and tries each test.
func (c *config) suite(ctx context.Context, tmp string, pkgs []*pkg, of *pkg, short bool) (*suite, error) {
	dir, err := os.MkdirTemp(tmp, of.Name+"-")
	if err != nil {
		return nil, err
	}
	t := &suite{binary: filepath.Join(dir, "tests"), dir: of.Dir, short: short, patience: c.patience}
	if err := c.build(ctx, dir, pkgs, of.ImportPath, t.binary); err != nil {
		return nil, err
	}
	if err := t.try(ctx, dir, max(1, c.parallel)); err != nil {
		return nil, fmt.Errorf("the tests of %s: %w", of.ImportPath, err)
	}
	for _, bad := range t.tests {
		if bad.why != "" {
			fmt.Fprintf(c.out, "%s: %s fails without a fault, and is not run: %s\n", of.ImportPath, bad.name, bad.why)
		}
	}
	t.tests = slices.DeleteFunc(t.tests, func(t *test) bool { return t.why != "" })
	return t, nil
}

var (
	failed  = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	crashed = regexp.MustCompile(`(?m)^(panic|fatal error): .*`)
	runs    = regexp.MustCompile(`(?m)^(?:Test|Fuzz|Example)\w*$`)
)

// try runs each test alone, without a fault: it finds out how long it takes, whether it fails
// anyway, and which faults are in code that it runs.
func (t *suite) try(ctx context.Context, tmp string, parallel int) error {
	list, err := t.run(ctx, time.Minute, "MILLRACE_MUTANT=0", "-test.list", ".")
	if err != nil {
		return fmt.Errorf("%w: %.1000s", err, list)
	}
	var mu sync.Mutex
	var some errgroup.Group
	some.SetLimit(parallel)
	for i, name := range runs.FindAllString(list, -1) {
		file := filepath.Join(tmp, fmt.Sprint("reached-", i))
		some.Go(func() error {
			one := &test{name: name, reached: map[int]bool{}}
			for range 3 { // a busy machine
				began := time.Now()
				out, err := t.run(ctx, time.Hour, "MILLRACE_MUTANTS_REACHED="+file, "-test.run", only(one))
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if one.takes, one.why = time.Since(began), ""; err == nil {
					break
				}
				one.why = fmt.Sprintf("%v: %s", err, out[max(0, len(out)-300):])
			}
			text, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			for _, line := range strings.Fields(string(text)) {
				if id, err := strconv.Atoi(line); err == nil {
					one.reached[id] = true
				}
			}
			mu.Lock()
			defer mu.Unlock()
			t.tests = append(t.tests, one)
			return nil
		})
	}
	if err := some.Wait(); err != nil {
		return err
	}
	slices.SortFunc(t.tests, func(a, b *test) int { return cmp.Or(cmp.Compare(a.takes, b.takes), strings.Compare(a.name, b.name)) })
	return nil
}

// only is the pattern of tests, and of no others.
func only(tests ...*test) string {
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// notices returns the test that notices a fault; "" for none. The fastest tests come first,
// and those that do not run its code not at all; reached tells whether any does.
func (t *suite) notices(ctx context.Context, id int) (by string, reached bool, err error) {
	var some []*test
	for _, one := range t.tests {
		if one.reached[id] {
			some = append(some, one)
		}
	}
	reached = len(some) > 0
	for batch := time.Second; len(some) > 0; batch *= 4 {
		n, takes := 0, time.Duration(0)
		for n < len(some) && (n == 0 || takes+some[n].takes <= batch) {
			takes += some[n].takes
			n++
		}
		if by, err = t.surely(ctx, id, some[:n], t.patience+5*takes); by != "" || err != nil {
			return by, reached, err
		}
		some = some[n:]
	}
	return "", reached, nil
}

// surely returns which of some tests notices a fault; "" for none. A test that fails must
// fail a second time, alone: one that failed because the machine was busy passes then. In
// that case all are run once more, and what notices the fault in that run counts.
func (t *suite) surely(ctx context.Context, id int, some []*test, within time.Duration) (by string, err error) {
	by, err = t.noticedBy(ctx, id, some, within)
	if by == "" || err != nil {
		return "", err
	}
	alone := some
	if i := slices.IndexFunc(some, func(t *test) bool { return t.name == by }); i >= 0 {
		alone = some[i : i+1]
	}
	if same, err := t.noticedBy(ctx, id, alone, within); same != "" || err != nil {
		return by, err
	}
	return t.noticedBy(ctx, id, some, within)
}

// noticedBy runs tests once with a fault and returns what notices it: the first test that
// fails, or the text of a panic, or a text that says that the tests do not end; "" if nothing
// does.
func (t *suite) noticedBy(ctx context.Context, id int, some []*test, within time.Duration) (by string, err error) {
	out, err := t.run(ctx, within, fmt.Sprint("MILLRACE_MUTANT=", id), "-test.failfast=true", "-test.run", only(some...))
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

// run runs the test binary, and returns what it prints. After the time within it kills it
// with all processes that it started.
func (t *suite) run(ctx context.Context, within time.Duration, env string, args ...string) (string, error) {
	limit, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if t.short {
		args = append(args, "-test.short")
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
