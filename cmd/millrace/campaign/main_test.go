//go:build linux

package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/freeport"
	"github.com/millrace/millrace/internal/minicluster"
)

// TestMain lets the test binary be etcd: with MILLRACE_CAMPAIGN_ETCD set to a
// directory and an address it runs the embedded server until it is killed. Or
// the process that asks brokers.
func TestMain(m *testing.M) {
	if brokers := os.Getenv(askedBrokers); brokers != "" {
		if err := serveCalls(os.Stdin, os.Stdout, strings.Split(brokers, ",")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv("MILLRACE_CAMPAIGN_ETCD"); dir != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		etcd, err := minicluster.StartEtcd(ctx, dir, os.Getenv("MILLRACE_CAMPAIGN_LISTEN"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		<-ctx.Done()
		etcd.Close()
		return
	}
	code := m.Run()
	os.Remove(public("built"))
	os.Exit(code)
}

// settings are what the environment says of a campaign.
type settings struct {
	lasts time.Duration // MILLRACE_CAMPAIGN
	short bool          // MILLRACE_CAMPAIGN is "short": a fixed list of faults, a few minutes
	seed  uint64        // MILLRACE_SEED, or drawn
	// backups is how often nodes back up to an S3 server; 0: not at all.
	backups time.Duration
	via     func(bucket string) string // what nodes reach the bucket by; nil: itself
	// rests has each change of who hosts what be followed by a while without one,
	// so that what drifts is the same for both.
	rests bool
	steps *regexp.Regexp // MILLRACE_STEPS: of what TestResizesUnderFaults breaks, only what is like it; nil: all
	roles string         // the binary of roles, but for coordinators; empty: the one that is tested
}

// need skips a test that nobody asked for, or that the machine cannot run; in
// CI, which sets MILLRACE_CAMPAIGN_MUST, what is missing is a failure.
func need(t *testing.T) settings {
	t.Helper()
	text := os.Getenv("MILLRACE_CAMPAIGN")
	if text == "" {
		t.Skip("run make faults, which sets MILLRACE_CAMPAIGN to how long the campaign lasts")
	}
	lack := func(what string) {
		t.Helper()
		if os.Getenv("MILLRACE_CAMPAIGN_MUST") != "" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	if os.Geteuid() != 0 {
		lack("needs root, for user ids, the packet filter and mounts")
	}
	for _, command := range []string{"java", "nft", "mount", "curl"} {
		if _, err := exec.LookPath(command); err != nil {
			lack("needs " + command + ": install default-jre-headless, nftables, mount and curl")
		}
	}
	s := settings{short: text == "short", seed: rand.Uint64() >> 32}
	var err error
	if s.lasts, err = time.ParseDuration(text); err != nil && !s.short {
		t.Fatalf("MILLRACE_CAMPAIGN: %v", err)
	}
	if text := os.Getenv("MILLRACE_SEED"); text != "" {
		if s.seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("MILLRACE_SEED: %v", err)
		}
	}
	if text := os.Getenv("MILLRACE_STEPS"); text != "" {
		if s.steps, err = regexp.Compile(text); err != nil {
			t.Fatalf("MILLRACE_STEPS: %v", err)
		}
	}
	return s
}

// freePorts returns the first of n consecutive ports on loopback that nobody
// listens on.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	port, err := freeport.Row(n)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// eventually asks again and again until done says yes, or fails with what the
// last refusal was.
func eventually(ctx context.Context, bound time.Duration, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %w", bound, err)
		case <-tick.C:
		}
	}
}
