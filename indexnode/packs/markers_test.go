package packs

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/relevance"
)

// deadly is packs one of which kills the process that reads it.
type deadly struct {
	*published
	kills artefacts.Version
}

func (d deadly) Body(ctx context.Context, v artefacts.Version) ([]byte, error) {
	if v == d.kills {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
		select {}
	}
	return d.published.Body(ctx, v)
}

const admittingDir = "MILLRACE_TEST_ADMITTING" // of a process that is to die

// dying is a follower of two versions, the second of which serves; with the markers
// of a directory.
func dying(t *testing.T, dir string) (f *Follower, p *published, first, second artefacts.Version) {
	a, _ := open(t)
	p = newPublished()
	first = p.put(t, nodetest.Likes(t))
	second = p.put(t, nodetest.PackOf(t, strings.Replace(nodetest.LikesSpec, `"1"`, `"2"`, 1), nodetest.LikesRow, relevance.ShippedSchemas()))
	p.serve(second)
	f = a.Follow(p, never)
	f.markers = markers{dir}
	return f, p, first, second
}

// The process that TestDeadlyPack kills.
func TestDeadlyPackProcess(t *testing.T) {
	dir := os.Getenv(admittingDir)
	if dir == "" {
		return // TestDeadlyPack starts it
	}
	f, p, _, second := dying(t, dir)
	f.packs = deadly{p, second}
	f.Admit(t.Context())
}

// A node that died twice in a row while it admitted a version starts without it,
// has all others, and says so, until the version is released.
func TestDeadlyPack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "admitting")
	start := func() error {
		c := exec.Command(os.Args[0], "-test.run=^TestDeadlyPackProcess$")
		c.Env = append(os.Environ(), admittingDir+"="+dir)
		out, err := c.CombinedOutput()
		var died *exec.ExitError
		if err != nil && (!errors.As(err, &died) || died.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL) {
			t.Fatalf("%v: %s", err, out)
		}
		return err
	}
	for range mostDeaths {
		if start() == nil {
			t.Fatal("it lives")
		}
	}
	if err := start(); err != nil {
		t.Fatal("it died of the same pack once more")
	}

	f, p, first, second := dying(t, dir)
	f.Admit(t.Context())
	told := f.admissions()
	slices.SortFunc(told, func(a, b members.Admission) int { return strings.Compare(a.Version, b.Version) })
	if len(told) != 2 || told[0].Refused != "" || told[0].Deadly || find(f.Admission, first) != nil {
		t.Fatalf("the other version: told %v", told)
	}
	if why := told[1].Refused; !told[1].Deadly || find(f.Admission, second) == nil || len(why) > 450 ||
		!strings.Contains(why, "died 2 times in a row while it admitted it") || !strings.Contains(why, "drop the version") || !strings.Contains(why, "millrace model release likes 2") {
		t.Fatalf("told %d bytes: %v", len(why), told[1])
	}
	if f.Pending() != "" {
		t.Errorf("it waits for %s", f.Pending())
	}

	release := func(at time.Time) {
		p.set(func() {
			p.history = append(p.history, ledger.Event{What: ledger.Released, Version: "2", Sum: second.Sum, When: at})
		})
	}
	release(time.Unix(1, 0))
	if err := f.mark(t.Context(), second); err != nil { // and dies again
		t.Fatal(err)
	}
	if err := f.mark(t.Context(), second); err == nil || !strings.Contains(err.Error(), "died 3 times") {
		t.Errorf("one release let it be tried twice: %v", err)
	}
	release(time.Unix(2, 0))
	f.Admit(t.Context())
	if err := find(f.Admission, second); err != nil {
		t.Errorf("it is not admitted, though released: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("a marker stays: %v", left)
	}
}

// A node that was killed once while it admitted a version, as by a restart, has it
// when it starts again, and that death counts no more.
func TestOneDeathIsForgiven(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "admitting")
	for range 3 {
		f, _, _, second := dying(t, dir)
		if err := f.mark(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		f, _, _, second = dying(t, dir)
		if f.Admit(t.Context()); find(f.Admission, second) != nil {
			t.Fatalf("it is refused: %v", f.admissions())
		}
	}
}

// Markers of versions that are dropped go with them; while etcd is away nothing is
// known to be dropped. A marker that is damaged counts for one death.
func TestMarkersOfDroppedVersions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "admitting")
	f, p, _, second := dying(t, dir)
	if err := f.mark(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	p.set(func() { delete(p.all, "likes"); p.fault = errors.New("etcd is away") })
	f.Admit(t.Context())
	if k := f.markers.read(second); k.Deaths != 1 {
		t.Errorf("while etcd is away: %+v", k)
	}
	if err := os.WriteFile(f.markers.file(second), nil, 0o600); err != nil || f.markers.read(second).Deaths != 1 {
		t.Errorf("%v, %+v", err, f.markers.read(second))
	}
	p.set(func() { p.fault = nil })
	f.Admit(t.Context())
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("a marker stays: %v", left)
	}
}
