//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// brittleSpec is a model whose versions go wrong where golden rows do not see
// it.
const brittleSpec = "name: brittle\nversion: %q\nschemas: [millrace.Activity]\nviewer: {taste: double}\nfeatures: {liked: %q}\nscorer: linear\nparameters: {weights: {liked: 1}}\n"

// What has generated code in this binary, and so in the processes that tests
// start: it panics, and takes far longer than admission reckons, while there is a
// file [brokenFile].
const (
	panics = "record.likes * viewer.taste + 3.0"
	crawls = "record.likes * viewer.taste + 4.0"
)

// brokenFile names the file, in the environment.
const brokenFile = "MILLRACE_TEST_BROKEN"

// threadTime is what this thread has used of a processor.
func threadTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func init() {
	for feature, breaks := range map[string]func(k *compute.ModelArgs, limit time.Duration){
		panics: func(*compute.ModelArgs, time.Duration) { panic("a broken table") },
		crawls: func(k *compute.ModelArgs, limit time.Duration) {
			runtime.LockOSThread() // whose time of a processor it takes, as a table that is too large does
			defer runtime.UnlockOSThread()
			for began := threadTime(); threadTime()-began < time.Duration(len(k.Sel))*2*limit; {
			}
		},
	} {
		m, err := relevance.Parse("spec.yaml", fmt.Appendf(nil, brittleSpec, "1", feature), relevance.ShippedSchemas())
		if err != nil {
			panic(err)
		}
		p, err := relevance.Join(m).Plan(schemas.Activity().Layout(), nil)
		if err != nil {
			panic(err)
		}
		compute.RegisterModel(compute.Model{Name: "brittle", Shape: p.Shape(), Score: func(k *compute.ModelArgs) {
			if _, err := os.Stat(os.Getenv(brokenFile)); err == nil {
				breaks(k, m.CostLimit())
			}
			for i := range k.Sel {
				k.Out[i] = 7
			}
		}})
	}
}

// TestRolloutOfBadVersions lets versions of a model serve under load that have no
// score that is a number, that panic, and that take fifty times what their
// admission reckoned. No feed fails, and both brokers are back on the last good
// version.
func TestRolloutOfBadVersions(t *testing.T) {
	lasts, measured := faultTime(t, time.Second)
	broken := filepath.Join(t.TempDir(), "broken")
	t.Setenv(brokenFile, broken)
	if measured {
		apart(t)
	}
	c := startRollingCluster(t)
	golden := func(score string) string {
		return fmt.Sprintf(`{"features":{"liked":%s},"score":%[1]s,"record":{"likes":1,"impressions":1},"viewer":{"taste":1}}`, score)
	}
	c.push(c.pack(fmt.Sprintf(brittleSpec, "1", "record.likes * viewer.taste"), golden("1"), map[string]string{}))
	c.define("liked", "model: brittle\nlimit: 10\n")
	reqs := rollingRequests("liked", rollingFollows)
	c.spoken(reqs[0], "1", "")

	perSecond := 20.0
	if measured {
		warm, cancel := context.WithTimeout(c.ctx, time.Second)
		defer cancel()
		c.load(warm, perSecond, reqs)
		perSecond = newCaller(t, c.grpc, 5*time.Second, reqs).closed(c.ctx, 8, lasts/3).goodput() / 3
	}
	for i, bad := range []struct{ what, feature, golden string }{
		{"nan", "record.likes * record.impressions / record.impressions", "1"},
		{"panic", panics, "4"},
		{"cost", crawls, "5"},
	} {
		version := fmt.Sprint(i + 2)
		c.push(c.pack(fmt.Sprintf(brittleSpec, version, bad.feature), golden(bad.golden), map[string]string{}), "--no-serve")
		v := c.version("brittle", version)
		if bad.what != "nan" {
			c.check(os.WriteFile(broken, nil, 0o644))
		}
		load, stop := context.WithCancel(c.ctx)
		var all []spoke
		var loading sync.WaitGroup
		loading.Go(func() { all = c.load(load, perSecond, reqs) })
		began := time.Now()
		c.check(c.models.Serve(c.ctx, v, nil, "a test"))
		clitest.WaitFor(c.ctx, t, "the cluster to say that it is condemned", func() bool { return c.failing.Why(v) != "" })
		select {
		case <-time.After(lasts):
		case <-c.ctx.Done():
		}
		stop()
		loading.Wait()
		c.gaveWay(bad.what, version, began, all, measured)
	}
}

// gaveWay tells how long a bad version ranked since it began to serve, and fails
// the test for each request that was not answered whole.
func (c *rollingCluster) gaveWay(what, version string, began time.Time, all []spoke, measured bool) {
	c.t.Helper()
	var back time.Duration
	var faults []error
	worst, bad, instead := time.Duration(0), 0, 0
	slices.SortFunc(all, func(a, b spoke) int { return a.at.Compare(b.at) })
	for _, s := range all {
		if s.fault != nil {
			faults = append(faults, s.fault)
		}
		worst = max(worst, s.took)
		switch {
		case s.version == version:
			bad, back = bad+1, max(back, s.at.Sub(began))
		case s.inPlaceOf == "brittle "+version:
			instead++
		}
	}
	c.t.Logf("%s: %d answers, %d by the bad version until %v after it served, %d in its place, the slowest after %v; %s", what, len(all), bad, back, instead, worst, c.failing.Why(c.version("brittle", version)))
	if len(faults) > 0 || instead == 0 || all[len(all)-1].version != "1" {
		c.t.Errorf("%s: %d of %d requests failed, %d were answered in the place of the bad version, the last by %s: %v", what, len(faults), len(all), instead, all[len(all)-1].version, errors.Join(faults[:min(3, len(faults))]...))
	}
	if measured {
		figure.Print("bad_version_"+what+"_served", back.Seconds(), "s")
		figure.Print("bad_version_"+what+"_failed", float64(len(faults)), "requests")
		figure.Print("bad_version_"+what+"_slowest", worst.Seconds(), "s")
		if back > time.Second {
			c.t.Errorf("%s: the bad version ranked for %v", what, back)
		}
	}
}

// version returns a version of a model that was published.
func (c *rollingCluster) version(model, version string) (found artefacts.Version) {
	c.t.Helper()
	clitest.WaitFor(c.ctx, c.t, model+" "+version+" to be heard of", func() bool {
		for _, v := range c.models.All()[model] {
			if v.Version == version {
				found = v
				return true
			}
		}
		return false
	})
	return found
}
