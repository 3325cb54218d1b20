//go:build linux

package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/secure/authority"
)

// TestFaultAlertsOfBrokers does what TestFaultAlerts does with a broker that reaches
// etcd by a relay, and has a certificate and a directory that can be made useless.
func TestFaultAlertsOfBrokers(t *testing.T) {
	a := authority.New(t)
	certificate, scraper := a.Issue("broker-3", "127.0.0.1"), a.Issue("prometheus")
	var etcd *relay
	var third *frontEnd
	w := startWatched(t, watchedConfig{nodes: 3, coordinator: "grace: 1h\n"}, func(w *watched) string {
		etcd = startRelay(t, w.etcd.Addr())
		third = &frontEnd{grpc: clitest.FreeAddr(t), front: clitest.FreeAddr(t), frontData: t.TempDir()}
		third.broker = start(t, w.failed, "broker-3", "broker", "--config", clitest.WriteConfig(t, "broker-3",
			"etcd: [%q]\ngrpc: %q\nadmin: %q\ndata: %s\ntls: %s\nauthorization: {identities: {prometheus: [operator], broker-3: [broker]}}\n", etcd.Addr(), third.grpc, third.front, third.frontData, inYAML(certificate)))
		return fmt.Sprintf("{job_name: millrace-broker-3, scheme: https, tls_config: {ca_file: %q, cert_file: %q, key_file: %q}, static_configs: [{targets: [%q]}]}", scraper.CA, scraper.Cert, scraper.Key, third.front)
	})
	aside := filepath.Join(t.TempDir(), "aside")
	w.breaks(
		alertFault{
			"a certificate ends soon", fires{"MillraceCertificateEnds"}, nil,
			func() {
				a.IssueWith("broker-3", func(c *x509.Certificate) {
					c.NotBefore, c.NotAfter = time.Now().Add(-30*24*time.Hour), time.Now().Add(24*time.Hour)
				}, "127.0.0.1")
			}, func() { a.Issue("broker-3", "127.0.0.1") },
		},
		alertFault{
			"a broker cannot write to its directory", fires{"MillraceStateUnwritten"}, nil,
			func() {
				if err := errors.Join(os.Rename(third.frontData, aside), os.WriteFile(third.frontData, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
				w.define("one", 7) // which it is to keep
			}, func() {
				if err := errors.Join(os.Remove(third.frontData), os.Rename(aside, third.frontData)); err != nil {
					t.Fatal(err)
				}
			},
		},
		alertFault{
			"a broker does not hear etcd and the assignment changes", fires{"MillraceMapsDiffer"}, []string{"MillraceEtcdAway"},
			func() {
				etcd.cut(true)
				w.command("cluster assign --from " + filepath.Join(w.data[0], "cluster", "map.json"))
			}, func() { etcd.cut(false) },
		},
		alertFault{
			"nodes stand still for most of each second", fires{"MillraceFeedSlow"}, nil,
			func() {
				w.beside = func() {
					for _, n := range w.nodes {
						n.signal(syscall.SIGSTOP)
						time.AfterFunc(700*time.Millisecond, func() { _ = n.cmd.Process.Signal(syscall.SIGCONT) }) // fails if the test has ended
					}
				}
			}, func() { w.beside = func() {} },
		},
		alertFault{
			"more ask than nodes can answer", fires{"MillraceLoadShed"}, []string{"MillraceFeedSlow"},
			func() {
				flood := newCaller(t, w.grpc, 5*time.Second, []*feedv1.GetFeedRequest{w.question})
				w.beside = func() { flood.closed(w.ctx, 500, 500*time.Millisecond) }
			}, func() { w.beside = func() {} },
		},
		alertFault{
			"a feed is by a model that no node has", fires{"MillraceNodeQueriesFail"}, []string{"MillraceRequestsFail", "MillraceModelRefused", "MillraceFeedNotTaken"},
			func() {
				w.serve(indexnode.ModelsKind, "none", "no archive")
				w.serve(feeds.Kind, "lost", "name: lost\nmodel: none\n")
				w.beside = func() {
					_, _ = w.client.GetFeed(w.ctx, &feedv1.GetFeedRequest{Feed: "lost", Viewer: w.question.Viewer, Entities: w.question.Entities}) // fails
				}
			}, func() {
				w.beside = func() {}
				w.serve(feeds.Kind, "lost", "")
				w.serve(indexnode.ModelsKind, "none", "")
			},
		},
	)
}

// relay passes what comes to it to an address, until it is cut.
type relay struct {
	net.Listener
	to string
	mu struct {
		sync.Mutex
		cut   bool
		conns map[net.Conn]bool
	}
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to}
	r.mu.conns = map[net.Conn]bool{}
	t.Cleanup(func() { r.Close(); r.cut(true) })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			go r.serve(from)
		}
	}()
	return r
}

// Addr is where it listens.
func (r *relay) Addr() string { return r.Listener.Addr().String() }

func (r *relay) serve(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer to.Close()
	r.mu.Lock()
	cut := r.mu.cut
	r.mu.conns[from], r.mu.conns[to] = true, true
	r.mu.Unlock()
	if !cut {
		go func() {
			defer from.Close()
			_, _ = io.Copy(from, to) // until one end is closed
		}()
		_, _ = io.Copy(to, from) // the same
	}
	r.mu.Lock()
	delete(r.mu.conns, from)
	delete(r.mu.conns, to)
	r.mu.Unlock()
}

// cut ends all connections, and new ones as soon as they are made; or lets them be.
func (r *relay) cut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.cut = cut
	for c := range r.mu.conns {
		if cut {
			c.Close()
		}
	}
}

// define defines a feed.
func (w *watched) define(name string, limit int) {
	w.t.Helper()
	w.command("feed define " + clitest.WriteConfig(w.t, name, "name: %s\nmodel: recency\nlimit: %d\n", name, limit))
}
