package team

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/grpctune"
)

// system is one of the systems that are compared: Millrace or a baseline. All answer the same
// questions.
type system struct {
	name  string                                   // the name in the table
	label string                                   // the name in the names of figures
	roles []role                                   // the processes whose CPU time and memory count
	log   func() (rig.Used, error)                 // what the log and etcd use; nil: the system has none
	dial  func(ctx context.Context) (asker, error) // the client's connections end with ctx
	judge func(i int, a *answer) string            // compares the answer to the ith question with the oracle's; "": it is right. nil: by truth.judge

	profile map[string]*rig.Process // processes that can write CPU profiles, by role
}

// role is a process of a system, or several that are counted together.
type role struct {
	name string
	used func() (rig.Used, error)
}

// asker is a client of a system, for one goroutine.
type asker interface {
	ask(ctx context.Context, q *question, a *answer) error
}

// answer is an answer in the form that its system has: feed by gRPC, otherwise items.
type answer struct {
	feed  *feedv1.GetFeedResponse // nil: the answer is in items
	items []item
}

// ids calls f with the index and the id of each item, in order.
func (a *answer) ids(f func(i int, id string)) {
	if a.feed != nil {
		for i, it := range a.feed.Items {
			f(i, it.Id)
		}
		return
	}
	for i := range a.items {
		f(i, a.items[i].id)
	}
}

// grpcAsker asks with the messages of the feed API. A partial answer is an error.
type grpcAsker struct{ feed feedv1.FeedServiceClient }

func dialGRPC(addr string, options ...grpc.DialOption) func(context.Context) (asker, error) {
	return func(context.Context) (asker, error) {
		conn, err := grpc.NewClient(addr, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return nil, err
		}
		return &grpcAsker{feedv1.NewFeedServiceClient(conn)}, nil
	}
}

func (g *grpcAsker) ask(ctx context.Context, q *question, a *answer) (err error) {
	if a.feed, err = g.feed.GetFeed(ctx, q.req); err == nil && len(a.feed.GetCoverage().GetMissing()) > 0 {
		err = fmt.Errorf("a partial answer: %v", a.feed.Coverage.Missing)
	}
	return err
}

// frameAsker asks by frames.
type frameAsker struct {
	net.Conn
	in            *bufio.Reader
	asked, answer []byte
}

func dialFrames(addr string) func(context.Context) (asker, error) {
	return func(ctx context.Context) (asker, error) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { c.Close() })
		return &frameAsker{Conn: c, in: bufio.NewReaderSize(c, 64<<10)}, nil
	}
}

func (f *frameAsker) ask(_ context.Context, q *question, a *answer) (err error) {
	f.asked = q.append(frameOf(f.asked))
	if err := sendFrame(f.Conn, f.asked); err != nil {
		return err
	}
	if f.answer, err = readFrame(f.in, f.answer); err != nil {
		return err
	}
	got := frame{b: f.answer}
	a.items = got.items()
	return got.err
}

// startHandwritten starts a hand-written server: with grpc-go if byGRPC, and otherwise with
// frames over plain TCP.
func (r *run) startHandwritten(byGRPC bool) (*system, error) {
	s := &system{name: "hand-written, plain TCP", label: "tcp"}
	if byGRPC {
		s.name, s.label = "hand-written, grpc-go", "grpc"
	}
	p, out, err := r.family.Start("handwritten-"+s.label, runtime.NumCPU(), "bench", "handwritten",
		fmt.Sprintf("--entities=%d", r.w.entities), fmt.Sprintf("--seed=%d", r.w.seed), fmt.Sprintf("--grpc=%v", byGRPC))
	if err != nil {
		return nil, err
	}
	var addr string
	if err := r.said(out, &addr); err != nil {
		return nil, err
	}
	s.roles = []role{{"server", p.Used}}
	if s.dial = dialFrames(addr); byGRPC {
		s.dial = dialGRPC(addr, grpctune.Client()...) // the same options as for Millrace, so that the clients cost the same
		s.judge = func(i int, a *answer) string { return r.truth.judge(i, itemsOf(a.feed)) }
	}
	return s, nil
}

// said reads the address that a process prints to out when it is ready. If the process ends
// instead, the error is the cause.
func (r *run) said(out io.Reader, addr *string) error {
	if _, err := fmt.Fscanln(out, addr); err != nil {
		select {
		case <-r.family.Ctx.Done(): // the process ended; the cause has the end of its log
			return context.Cause(r.family.Ctx)
		case <-time.After(rig.Patience):
			return err
		}
	}
	return nil
}

// itemsOf returns the items of an answer of the hand-written server by gRPC.
func itemsOf(resp *feedv1.GetFeedResponse) (items []item) {
	for _, i := range resp.Items {
		it := item{id: i.Id, author: i.Entity, object: i.Object, kind: place(kinds, i.Type), at: i.Time.AsTime().UnixMilli(), score: i.Score}
		for _, a := range i.Also {
			it.also = append(it.also, a.Id)
		}
		items = append(items, it)
	}
	return items
}

// startRedis starts and fills Redis. If it is not installed, startRedis returns nil without
// an error, and adds that to r.skipped.
func (r *run) startRedis() (*system, error) {
	server, err := startRedis(r.family)
	if errors.Is(err, exec.ErrNotFound) {
		r.skipped = append(r.skipped, "Redis is left out: no redis-server is installed (apt-get install redis-server)")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := server.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := r.w.fillRedis(c); err != nil {
		return nil, err
	}
	return &system{
		name: "Redis, pulled", label: "redis", roles: []role{{"server", server.process.Used}},
		dial: func(ctx context.Context) (asker, error) {
			c, err := server.dial()
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { c.Close() })
			return &puller{seeker: *newSeeker(nil), conn: c}, nil
		},
	}, nil
}
