package broker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// patience is longer than any test takes, however busy its machine.
const patience = 24 * time.Hour

// waiting is a broker over one node behind gRPC, and what the node was asked
// with: each question's context, which the node keeps until it ends.
func waiting(t *testing.T) (b *Broker, asked chan context.Context) {
	w := newWorld(t, 1, 1)
	asked = make(chan context.Context, 1)
	w.nodes["n0"].work = func(ctx context.Context) error {
		select {
		case asked <- ctx:
		case <-ctx.Done():
		}
		<-ctx.Done()
		return ctx.Err()
	}
	stop, addr := serveNode(t, w.nodes["n0"], "127.0.0.1:0")
	w.m = topology.NewMap(w.m.Assignment(), []topology.Node{{ID: "n0", Addr: addr}}, map[millrace.NodeID]topology.Set{"n0": topology.All()})
	b, err := New(Config{Maps: w, Log: slog.New(slog.DiscardHandler), Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = b.Close() })
	return b, asked
}

func askHTTP(ctx context.Context, t *testing.T, url string, header map[string]string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(`{"feed":"recent","entities":["member:1"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	return http.DefaultClient.Do(req)
}

// The time that a caller allows bounds the answer and the nodes' work, on both
// HTTP routes.
func TestTimeoutHeader(t *testing.T) {
	b, asked := waiting(t)
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	for _, c := range []struct{ path, header, long, short string }{
		{"/v1/feed", admission.TimeoutHeader, "60m", "50ms"},
		{"/millrace.feed.v1.FeedService/GetFeed", admission.TimeoutHeader, "1h", "0.05s"},
		{"/millrace.feed.v1.FeedService/GetFeed", "Connect-Timeout-Ms", "3600000", "50"},
	} {
		ctx, leave := context.WithCancel(t.Context())
		began, done := time.Now(), make(chan error, 1)
		go func() {
			_, err := askHTTP(ctx, t, s.URL+c.path, map[string]string{c.header: c.long})
			done <- err
		}()
		onNode := <-asked
		if at, ok := onNode.Deadline(); !ok || at.Before(began.Add(59*time.Minute)) || at.After(time.Now().Add(time.Hour)) {
			t.Errorf("%s %s: the node has until %s after the start, %v", c.path, c.header, at.Sub(began), ok)
		}
		leave()
		<-done
		<-onNode.Done()

		resp, err := askHTTP(t.Context(), t, s.URL+c.path, map[string]string{c.header: c.short})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("%s %s: %d", c.path, c.header, resp.StatusCode)
		}
		select {
		case onNode := <-asked:
			<-onNode.Done()
		default: // the time was over before
		}
	}
}

func TestBadTimeoutHeader(t *testing.T) {
	s := served(t)
	for _, value := range []string{"0s", "-1s", "5", "soon", "1e9"} {
		resp, err := askHTTP(t.Context(), t, s.URL+"/v1/feed", map[string]string{admission.TimeoutHeader: value})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %d", value, resp.StatusCode)
		}
	}
	// Ten years are not refused: they are the broker's own limit.
	resp, err := askHTTP(t.Context(), t, s.URL+"/v1/feed", map[string]string{admission.TimeoutHeader: "87600h"})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("ten years: %d", resp.StatusCode)
	}
}

// When a caller goes away, the nodes stop, whatever the wire.
func TestAbandonedWorkStops(t *testing.T) {
	b, asked := waiting(t)
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	g := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for name, call := range map[string]func(context.Context) error{
		"plain HTTP": func(ctx context.Context) error {
			_, err := askHTTP(ctx, t, s.URL+"/v1/feed", nil)
			return err
		},
		"connect": func(ctx context.Context) error {
			_, err := askHTTP(ctx, t, s.URL+"/millrace.feed.v1.FeedService/GetFeed", nil)
			return err
		},
		"gRPC": func(ctx context.Context) error {
			_, err := feedv1.NewFeedServiceClient(conn).GetFeed(ctx, recentRequest(1))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			onNode := <-asked
			if onNode.Err() != nil {
				t.Error("the node's time ended before its caller left")
			}
			leave()
			if err := <-done; err == nil {
				t.Error("an answer, without anybody there")
			}
			<-onNode.Done() // long before its deadline
		})
	}
}

// Thousands of requests that are given up as soon as they are sent leave nothing
// behind: no work on a node, no memory, and no place of the limiter.
func TestAStormOfRequestsThatAreGivenUp(t *testing.T) {
	w := newWorld(t, 1, 1)
	var working atomic.Int64
	var over atomic.Bool
	w.nodes["n0"].work = func(ctx context.Context) error {
		working.Add(1)
		defer working.Add(-1)
		if over.Load() {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	stop, addr := serveNode(t, w.nodes["n0"], "127.0.0.1:0")
	w.m = topology.NewMap(w.m.Assignment(), []topology.Node{{ID: "n0", Addr: addr}}, map[millrace.NodeID]topology.Set{"n0": topology.All()})
	b, err := New(Config{Maps: w, Log: slog.New(slog.DiscardHandler), Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = b.Close() })
	g := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	const callers, each = 32, 60
	var storm sync.WaitGroup
	for caller := range callers {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		storm.Go(func() {
			for range each {
				ctx, leave := context.WithCancel(t.Context())
				time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, leave)
				var err error
				if caller%2 == 0 {
					_, err = feedv1.NewFeedServiceClient(conn).GetFeed(ctx, recentRequest(1))
				} else if resp, httpErr := askHTTP(ctx, t, s.URL+"/v1/feed", nil); httpErr != nil {
					err = httpErr
				} else {
					err = errors.New(resp.Status)
					_ = resp.Body.Close()
				}
				if err == nil {
					t.Error("an answer to who has left")
				}
				leave()
			}
		})
	}
	storm.Wait()
	over.Store(true)
	waitFor(t, "the work on the node, and the memory, to be over", func() bool {
		return working.Load() == 0 && b.admission.Parsing.Held() == 0 && b.admission.Answering.Held() == 0
	})
	for range 2 * callers { // as many as the limiter lets in at the beginning, and more
		if _, err := b.GetFeed(t.Context(), recentRequest(1)); err != nil {
			t.Fatal(err)
		}
	}
}

// Callers who allow more than the broker does, or say nothing, wait no longer
// than the broker allows: neither for nodes, nor for the schema of what these
// answered.
func TestTimeoutOfTheBroker(t *testing.T) {
	const allowed = 300 * time.Millisecond
	for name, c := range map[string]struct {
		dial func(*world) func(topology.Node) (fanout.Node, error)
		want millrace.Reason
	}{
		"frozen": {func(w *world) func(topology.Node) (fanout.Node, error) {
			w.nodes["n0"].frozen = true
			return w.dial
		}, millrace.ReasonDeadline},
		"no schema": {func(w *world) func(topology.Node) (fanout.Node, error) {
			return func(topology.Node) (fanout.Node, error) { return noSchema{w.nodes["n0"]}, nil }
		}, millrace.ReasonUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 1)
				w.add(timelineOf(0), recordID(0), timeAt(0), "")
				b, err := New(Config{Maps: w, Log: slog.New(slog.DiscardHandler), Timeout: allowed, Dial: c.dial(w)})
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				patient, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				for _, ctx := range []context.Context{t.Context(), patient} {
					start := time.Now()
					_, err := b.GetFeed(ctx, recentRequest(1))
					if e := refusal(t, err); e.Reason != c.want || time.Since(start) > allowed {
						t.Errorf("%+v after %v", e, time.Since(start))
					}
				}
			})
		})
	}
}

// noSchema is a node that answers questions and never says a schema.
type noSchema struct{ *fakeNode }

func (noSchema) GetSchema(ctx context.Context, _ *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
