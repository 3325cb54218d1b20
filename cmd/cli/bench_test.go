package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// TestBench runs every shape over small worlds with steps too short to time
// anything: the command works, asks for as much as the shapes say, by
// generated code, and every answer is right.
func TestBench(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	for _, c := range []struct {
		shape              string
		nodes              []int
		entities           int
		candidates, slack  float64 // a factor: how many a few viewers follow differs
		passes, fieldReads float64
	}{
		{"fishdb", []int{1, 3}, 1000, 3_000, 1.1, 0.69, 150_000},
		{"followfeed", []int{3}, 1050, 20_000, 1.1, 0.69, 1_000_000},
	} {
		t.Run(c.shape, func(t *testing.T) {
			out := run(t, "bench", "--shape", c.shape, "--nodes", strings.Trim(strings.ReplaceAll(fmt.Sprint(c.nodes), " ", ","), "[]"), "--entities", fmt.Sprint(c.entities), "--viewers", "5", "--duration", "100ms", "--data", t.TempDir())
			got := figures(t, out)
			for _, nodes := range c.nodes {
				figure := func(name string) float64 { return got[fmt.Sprintf("%s_%s_%d", c.shape, name, nodes)] }
				if n := figure("candidates"); n < c.candidates/c.slack || n > c.slack*c.candidates {
					t.Errorf("%d nodes: %v candidates, want about %v", nodes, n, c.candidates)
				}
				if n := figure("field_reads"); n < c.fieldReads {
					t.Errorf("%d nodes: %v field reads, want %v", nodes, n, c.fieldReads)
				}
				if n := figure("passes"); n < c.passes-0.02 || n > c.passes+0.02 {
					t.Errorf("%d nodes: the filter passes %v, want %v", nodes, n, c.passes)
				}
				if n := figure("oracle_equal"); n != 4 {
					t.Errorf("%d nodes: %v answers are the oracle's, want 4", nodes, n)
				}
				for _, name := range []string{"saturation_qps", "cpu_per_query_us", "p50_one_client_ms", "most_qps", "p99_half_saturation_ms", "late_p99_half_saturation_ms"} {
					if figure(name) <= 0 {
						t.Errorf("%d nodes: %s is %v", nodes, name, figure(name))
					}
				}
			}
			if strings.Contains(out, "interpreted") {
				t.Errorf("not by generated code:\n%s", out)
			}
		})
	}
}

// The team's workload, small and without what may not be installed: every
// answer of Millrace and of the hand-written indexes is the oracle's, and the
// world is what the issue of a benchmark like it says, for its size.
func TestBenchTeam(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	for _, shape := range []string{"team", "team-flat"} {
		t.Run(shape, func(t *testing.T) {
			out := run(t, "bench", "--shape", shape, "--entities", "1000", "--viewers", "10", "--duration", "100ms", "--against", "grpc,tcp")
			got := figures(t, out)
			label := strings.ReplaceAll(shape, "-", "_")
			for _, system := range []string{"millrace", "grpc", "tcp"} {
				if n, told := got[label+"_"+system+"_inexact"]; n != 0 || !told {
					t.Errorf("%s: %v of 10 answers are not the oracle's", system, n)
				}
				for _, name := range []string{"cpu_per_query_us", "p50_ms", "p99_ms", "qps", "memory_mib"} {
					if n := got[label+"_"+system+"_"+name]; n <= 0 {
						t.Errorf("%s: %s is %v", system, name, n)
					}
				}
			}
			if n := got[label+"_passes"]; n < 0.24 || n > 0.28 {
				t.Errorf("the filter passes %v, want 0.26", n)
			}
			for _, name := range []string{"cpu_vs_grpc", "p50_vs_grpc", "p99_vs_grpc", "memory_vs_grpc", "cpu_vs_tcp", "idle_log_percent"} {
				if _, ok := got[label+"_"+name]; !ok {
					t.Errorf("there is no %s", name)
				}
			}
		})
	}
}

// Random workloads, small: the cluster answers every question as a program does
// that is written for the workload; and where that program is wrong in one
// number, this is found.
func TestBenchRandom(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	small := []string{"bench", "--shape", "random", "--entities", "300", "--viewers", "8", "--duration", "100ms"}
	got := figures(t, run(t, append(small, "--seed", "1", "--seeds", "2")...))
	if got["random_seeds"] != 2 || got["random_worst"] <= 0 || got["random_median"] <= 0 || got["random_worst_seed"] == 0 || got["random_candidates_least"] < 1000 {
		t.Errorf("the figures are %v", got)
	}
	out, err := output(append(small, "--seed", "1", "--fault")...)
	if err == nil || !strings.Contains(string(out), "answered otherwise than by the baseline") {
		t.Errorf("a wrong baseline is not found: %v\n%s", err, out)
	}
}

// figures are the lines of JSON in an output, by name.
func figures(t *testing.T, out string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, `{"figure"`) {
			continue
		}
		var f struct {
			Figure string
			Value  float64
		}
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all[f.Figure] = f.Value
	}
	return all
}

// A binary beside itself, by all that make regress does, within a slack that no
// busy machine exceeds.
func TestBenchCompare(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Setenv("MILLRACE_MAIN", "1") // of the binaries that are compared
	out := run(t, "bench", "compare", "--base", os.Args[0], "--entities", "1000", "--viewers", "5", "--duration", "200ms", "--rounds", "6", "--slack", "1e6", "--slack-p99", "1e6")
	for _, name := range []string{"cpu_per_query", "cpu_per_query_broker", "cpu_per_record_indexed", "cpu_per_record_partitioned", "p99", "not answered"} {
		if !strings.Contains(out, name) {
			t.Errorf("nothing is told of %s:\n%s", name, out)
		}
	}
	if _, err := output("bench", "compare", "--base", os.Args[0], "--rounds", "5"); err == nil {
		t.Error("five rounds, which say nothing, are taken")
	}
}

// A benchmark that is interrupted leaves no process and no files.
func TestBenchEndsItsProcesses(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	tmp := t.TempDir()
	cmd := exec.Command(os.Args[0], "bench", "--shape", "fishdb", "--entities", "1000", "--viewers", "5", "--duration", "1m", "--nodes", "1")
	cmd.Env = append(os.Environ(), "MILLRACE_MAIN=1", "TMPDIR="+tmp)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(text.String(), "every feed asked once") {
		n, err := said.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v: %s", err, text.String())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_ = cmd.Wait() // an interrupt is no failure
	if took := time.Since(began); took > clitest.Patience {
		t.Errorf("it took %s to end", took)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("%v: it left %v", err, left)
	}
	for pid, line := range processesOf(t, tmp) {
		t.Errorf("it left process %d: %s", pid, line)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// processesOf are the processes with a directory in their arguments, where
// the system tells them.
func processesOf(t *testing.T, dir string) map[int]string {
	t.Helper()
	all := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(line), dir) {
			all[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return all
}

// The models and filters of the benchmark run by code that is checked in.
func TestBenchCodeIsFresh(t *testing.T) {
	t.Parallel()
	run(t, "generate", "--check", "--out", "../millrace/bench", "--package", "bench", "--feed", "../millrace/bench/feeds/follows.yaml", "../millrace/bench/fifty")
}
