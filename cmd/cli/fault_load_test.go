//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

var nan = math.NaN()

// caller asks a broker the same questions again and again. So that it costs
// little beside what it measures, requests are written once, and of an answer
// only its coverage is read.
type caller struct {
	t       *testing.T
	conns   []*grpc.ClientConn
	asked   [][]byte
	timeout time.Duration
}

func newCaller(t *testing.T, addr string, timeout time.Duration, reqs []*feedv1.GetFeedRequest) *caller {
	t.Helper()
	l := &caller{t: t, timeout: timeout}
	for range 8 { // a connection carries a thousand requests at a time
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		l.conns = append(l.conns, conn)
	}
	for _, req := range reqs {
		body, err := proto.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		l.asked = append(l.asked, body)
	}
	return l
}

// raw sends and receives messages as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// tally is what became of requests.
type tally struct {
	sync.Mutex
	whole, partial, shed, late int
	unsent                     int             // this process came too late to send them
	failed                     []error         // in any other way
	took                       []time.Duration // by whole answers, since they were due
	lasted                     time.Duration
}

func (l *tally) String() string {
	return fmt.Sprintf("%d whole (%.0f/s, p50 %v, p99 %v), %d partial, %d shed, %d late, %d failed, %d unsent", l.whole, l.goodput(),
		l.quantile(0.5).Round(10*time.Microsecond), l.quantile(0.99).Round(10*time.Microsecond), l.partial, l.shed, l.late, len(l.failed), l.unsent)
}

// goodput is the whole answers in time, a second in which requests were sent.
func (l *tally) goodput() float64 {
	sent := float64(l.asked()) / float64(max(1, l.asked()+l.unsent))
	return float64(l.whole) / (sent * l.lasted.Seconds())
}

func (l *tally) asked() int { return l.whole + l.partial + l.shed + l.late + len(l.failed) }

func (l *tally) quantile(q float64) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	slices.Sort(l.took)
	return l.took[int(q*float64(len(l.took)-1))]
}

// ask sends the i-th request, which was due at a time, and notes what became
// of it.
func (l *caller) ask(ctx context.Context, i int, due time.Time, into *tally) {
	if time.Since(due) >= l.timeout { // others had the processor
		into.Lock()
		defer into.Unlock()
		into.unsent++
		return
	}
	ctx, cancel := context.WithDeadline(ctx, due.Add(l.timeout))
	defer cancel()
	var answer []byte
	err := l.conns[i%len(l.conns)].Invoke(ctx, feedv1.FeedService_GetFeed_FullMethodName, l.asked[i%len(l.asked)], &answer)
	took := time.Since(due)
	whole := false
	if err == nil {
		whole, err = isWhole(answer)
	}
	into.Lock()
	defer into.Unlock()
	switch code := status.Code(err); {
	case err == nil && whole:
		into.whole++
		into.took = append(into.took, took)
	case err == nil:
		into.partial++
	case code == codes.ResourceExhausted:
		into.shed++
	case code == codes.DeadlineExceeded:
		into.late++
	default:
		into.failed = append(into.failed, err)
	}
}

// isWhole reports whether the coverage of an answer misses nothing.
func isWhole(answer []byte) (bool, error) {
	const coverage, missing = 3, 5 // of GetFeedResponse and of Coverage
	whole := true
	err := fields(answer, func(number protowire.Number, value []byte) error {
		if number != coverage {
			return nil
		}
		_, n := protowire.ConsumeBytes(value)
		body, _ := protowire.ConsumeBytes(value[:n])
		return fields(body, func(number protowire.Number, _ []byte) error {
			whole = whole && number != missing
			return nil
		})
	})
	return whole, err
}

// fields calls do with the number and the encoded value of each field of a
// message.
func fields(b []byte, do func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return protowire.ParseError(n)
		}
		if err := do(number, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// closed has a number of clients that each ask as soon as they were answered.
func (l *caller) closed(ctx context.Context, clients int, lasts time.Duration) *tally {
	sum := &tally{lasted: lasts}
	ctx, cancel := context.WithTimeout(ctx, lasts+l.timeout)
	defer cancel()
	end := time.Now().Add(lasts)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := c; time.Now().Before(end); i += clients {
				l.ask(ctx, i, time.Now(), sum)
			}
		})
	}
	wg.Wait()
	return sum
}

// open asks at a rate, whatever becomes of the requests. The time of one that
// could not be sent when it was due counts from when it was.
func (l *caller) open(ctx context.Context, perSecond float64, lasts time.Duration) *tally {
	sum := &tally{lasted: lasts}
	var wg sync.WaitGroup
	began := time.Now()
	total := int(perSecond * lasts.Seconds())
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := 0; i < total; {
		due := began.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))
		if time.Now().Before(due) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				l.t.Fatal(context.Cause(ctx))
			}
			continue
		}
		wg.Go(func() { l.ask(ctx, i, due, sum) })
		i++
	}
	wg.Wait()
	return sum
}

// want fails the test for any request of a tally that was not answered whole.
func (l *tally) want(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: %v", what, l)
	if l.whole != l.asked() {
		t.Errorf("%s: %d of %d requests were not answered whole: %v; %v", what, l.asked()-l.whole, l.asked(), l, errors.Join(l.failed[:min(3, len(l.failed))]...))
	}
}
