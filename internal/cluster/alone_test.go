package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
)

// One acts at a time, whoever comes; who waits too long is told of whom.
func TestOneActsAlone(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	var inside, acts atomic.Int32
	done := make(chan error, 6)
	for range cap(done) {
		cl := etcd.open("")
		go func() {
			done <- cl.Alone(ctx, "count", func(context.Context) error {
				if inside.Add(1) != 1 {
					t.Error("two act at once")
				}
				time.Sleep(10 * time.Millisecond)
				inside.Add(-1)
				acts.Add(1)
				return nil
			})
		}()
	}
	for range cap(done) {
		check(t, <-done)
	}
	if acts.Load() != 6 {
		t.Errorf("%d have acted", acts.Load())
	}

	held, free := make(chan struct{}), make(chan struct{})
	first, second := etcd.open(""), etcd.open("")
	failed := errors.New("failed")
	go func() {
		done <- first.Alone(ctx, "restart node-1", func(context.Context) error {
			close(held)
			<-free
			return failed
		})
	}()
	<-held
	err := second.Alone(ctx, "restart node-2", func(context.Context) error { return errors.New("acts too") })
	var refused *millrace.Error
	if !errors.As(err, &refused) || refused.Reason != millrace.ReasonUnavailable || !strings.Contains(refused.Detail, "restart node-1") || refused.WayOut == "" {
		t.Errorf("who waits is told %v", err)
	}
	close(free)
	if err := <-done; err != failed {
		t.Error(err)
	}
	check(t, second.Alone(ctx, "restart node-2", func(context.Context) error { return nil }))
}

// Who ends without a word is given up, and whoever acts when etcd is lost stops in
// time.
func TestWhoActsAloneIsGivenUp(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	pipe := startPipe(t, etcd.addr)
	gone, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{pipe.addr()}, Name: "test", Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- gone.Alone(ctx, "stay", func(ctx context.Context) error {
			close(begun)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	<-begun
	pipe.freeze() // or it ends with a word
	defer pipe.thaw()
	check(t, gone.Close())
	if err := <-ended; !errors.Is(err, cluster.ErrAway) {
		t.Errorf("who cannot ask etcd any more ends with %v", err)
	}
	next := etcd.open("")
	var refused *millrace.Error
	for end := time.Now().Add(time.Minute); ; { // its lease may end later, on a busy machine
		err := next.Alone(ctx, "go on", func(context.Context) error { return nil })
		if !errors.As(err, &refused) || time.Now().After(end) {
			check(t, err)
			return
		}
	}
}
