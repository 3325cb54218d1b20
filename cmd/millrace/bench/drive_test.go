package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/rpcerr"
)

func TestSustained(t *testing.T) {
	for _, c := range []struct {
		took, refused, missed int
		want                  bool
	}{
		{1000, 0, 0, true}, {1000, 1, 0, true}, {1000, 0, 1, true}, {1000, 1, 1, false}, {2000, 1, 1, true}, {500, 1, 0, false}, {0, 1, 0, false},
	} {
		a := arrivals{took: make(rig.Latencies, c.took), refused: c.refused, missed: c.missed}
		if got := a.sustained(); got != c.want {
			t.Errorf("%d in time, %d refused, %d not: sustained is %v", c.took, c.refused, c.missed, got)
		}
	}
}

// What is no answer in time is told from what is wrong.
func TestRefusal(t *testing.T) {
	for name, c := range map[string]struct{ err, want error }{
		"the broker's gate":     {rpcerr.Status(&millrace.Error{Reason: millrace.ReasonOverloaded}), rig.ErrRefused},
		"the broker's deadline": {rpcerr.Status(&millrace.Error{Reason: millrace.ReasonDeadline}), errMissed},
		"gRPC's deadline":       {status.Error(codes.DeadlineExceeded, "too late"), errMissed},
		"our own":               {status.FromContextError(context.DeadlineExceeded).Err(), errMissed},
	} {
		if got := refusal(c.err); !errors.Is(got, c.want) {
			t.Errorf("%s is %v, want %v", name, got, c.want)
		}
	}
	if err := refusal(status.Error(codes.Internal, "broken")); errors.Is(err, rig.ErrRefused) || errors.Is(err, errMissed) {
		t.Errorf("what is broken is %v", err)
	}
}

// One bad second of four is not the usual one; nor is the last, begun for what
// was left.
func TestUsualSecond(t *testing.T) {
	second := func(ms time.Duration) rig.Latencies {
		return rig.Latencies{ms * time.Millisecond / 2, ms * time.Millisecond}
	}
	a := arrivals{seconds: []rig.Latencies{second(8), second(90), second(9), second(10), second(1)}}
	if got := a.usual(0.99); got != 10*time.Millisecond {
		t.Errorf("the usual second takes %v", got)
	}
	if got := a.usual(0.49); got != 10*time.Millisecond/2 {
		t.Errorf("and half as long %v", got)
	}
	a.seconds = a.seconds[:1]
	if got := a.usual(0.99); got != 8*time.Millisecond {
		t.Errorf("the only second takes %v", got)
	}
}
