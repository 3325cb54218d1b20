//go:build linux

package campaign

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/figure"
)

// gate stands between nodes and their bucket, and kills a node in the midst of
// an operation.
type gate struct {
	t      *testing.T
	killed chan *process
	mu     struct {
		sync.Mutex
		world *world
		step  step
		left  int            // operations of the step that are let pass first
		got   map[string]int // how often each file was read whole
		seen  map[string]int // operations, by what they are
	}
}

// step is an operation on the bucket, and whether it is done.
type step struct {
	operation string // method and folder
	done      bool
	nth       int // 0 is the first
}

func (s step) String() string {
	return fmt.Sprintf("%s, number %d, done: %t", s.operation, s.nth+1, s.done)
}

// newGate returns a gate before a bucket, and the bucket's URL through it.
func newGate(t *testing.T) *gate {
	g := &gate{t: t, killed: make(chan *process, 1)}
	g.mu.got, g.mu.seen = map[string]int{}, map[string]int{}
	return g
}

// before listens before a bucket, and returns its URL for nodes.
func (g *gate) before(bucket string) string {
	g.t.Helper()
	u, err := url.Parse(bucket)
	if err != nil {
		g.t.Fatal(err)
	}
	to, err := url.Parse(u.Query().Get("endpoint"))
	if err != nil {
		g.t.Fatal(err)
	}
	l, err := net.Listen("tcp", local(freePorts(g.t, 1)))
	if err != nil {
		g.t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host // what is signed stays
			r.Out.Host = r.In.Host
		},
		Transport:    &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	serve := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/campaign/")
		folder, _, _ := strings.Cut(name, "/")
		operation := r.Method + " " + folder
		g.pass(r.RemoteAddr, operation, false)
		forward.ServeHTTP(w, r)
		g.pass(r.RemoteAddr, operation, true)
		if operation == "GET files" && r.Header.Get("Range") == "" {
			g.mu.Lock()
			g.mu.got[name]++
			g.mu.Unlock()
		}
	})}
	go serve.Serve(l)
	g.t.Cleanup(func() { serve.Close() })
	return strings.Replace(bucket, to.Host, l.Addr().String(), 1)
}

// pass kills the node that asks, if this is the step to die at.
func (g *gate) pass(from, operation string, done bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !done {
		g.mu.seen[operation]++
	}
	if g.mu.world == nil || g.mu.step.operation != operation || g.mu.step.done != done {
		return
	}
	uid, err := userOf(from)
	if err != nil {
		return // it has gone meanwhile
	}
	for _, p := range g.mu.world.nodes {
		if p.uid != uid {
			continue
		}
		if g.mu.left > 0 {
			g.mu.left--
			return
		}
		g.mu.step = step{}
		p.kill(syscall.SIGKILL)
		g.killed <- p
		return
	}
}

// userOf returns whose a connection of this machine is.
func userOf(addr string) (uint32, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	want := fmt.Sprintf("0100007F:%04X", n)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 7 && fields[1] == want {
			uid, err := strconv.ParseUint(fields[7], 10, 32)
			return uint32(uid), err
		}
	}
	return 0, fmt.Errorf("no connection from %s", addr)
}

// dieAt has the next node that comes to a step die there, and returns it.
func (g *gate) dieAt(w *world, s step) *process {
	g.t.Helper()
	g.mu.Lock()
	g.mu.world, g.mu.step, g.mu.left = w, s, s.nth
	g.mu.Unlock()
	select {
	case p := <-g.killed:
		g.t.Logf("%s dies at %v", p.name, s)
		return p
	case <-time.After(patience):
		g.t.Fatalf("no node comes to %v; seen: %v", s, g.mu.seen)
		return nil
	}
}

// TestKillsBesideTheBucket kills nodes with -9 in the midst of every operation of
// backups, expiry and restores, before it and after it: each goes on from there,
// and at the end all that is in the bucket restores, and all that the log has is
// on the nodes.
func TestKillsBesideTheBucket(t *testing.T) {
	s := need(t)
	s.backups = backupEvery
	g := newGate(t)
	s.via = g.before
	w := startWorld(t, s, "bucket", true)
	w.load.burst(w.ctx, 20*members)
	w.settle()
	stop := w.underLoad()
	defer stop()
	kills := 0
	for _, operation := range []string{"PUT pending", "PUT files", "GET files", "PUT partitions", "GET partitions", "DELETE pending", "PUT expiry", "DELETE partitions", "DELETE expiry"} {
		for _, done := range []bool{false, true} {
			p := g.dieAt(w, step{operation: operation, done: done})
			if err := p.start(); err != nil {
				t.Fatal(err)
			}
			kills++
		}
		w.settle()
	}
	if err := w.backedUp(); err != nil {
		t.Fatal(err)
	}
	for i, at := range []step{{"GET partitions", false, 300}, {"GET partitions", true, 300}, {"GET files", false, 10}, {"GET files", true, 100}, {"GET files", false, 300}} {
		node := w.nodes[i%nodes]
		node.kill(syscall.SIGKILL)
		g.mu.Lock()
		clear(g.mu.got)
		g.mu.Unlock()
		if err := errors.Join(w.emptyDisk(node), node.start()); err != nil {
			t.Fatal(err)
		}
		p := g.dieAt(w, at)
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		kills++
		w.settle()
		g.mu.Lock()
		files, again := len(g.mu.got), 0
		for _, n := range g.mu.got {
			again += n - 1
		}
		g.mu.Unlock()
		t.Logf("%d files were read, %d of them again", files, again)
	}
	stop()
	w.asker.drain()
	t.Log(w.asker.take())
	out, err := w.command("backup", "verify", "--from", w.bucket, "--depth", "restore")
	if err != nil {
		t.Errorf("verify: %v: %s", err, out)
	}
	figure.Print("bucket_kills", float64(kills), "kills")
	if w.finish() {
		figure.Print("bucket_digests_compared", float64(w.digests()), "partitions")
	}
	w.verdict()
}
