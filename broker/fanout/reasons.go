package fanout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/questions"
)

// Why a call of a node gave no answer.
var (
	// errUnresponsive is the cause with which calls of an unresponsive node are ended.
	errUnresponsive = errors.New("broker: the node is unresponsive")
	ErrUnreachable  = errors.New("broker: the node cannot be reached")
	ErrTooLarge     = errors.New("broker: the node's answer is larger than a message may be")
	errOlder        = errors.New("broker: the node is of an older version, which does not understand all of the question")
)

// reason returns, as one of the Miss constants, why a call with the context ctx that gave
// err answered nothing.
func reason(ctx context.Context, err error) string {
	var e *millrace.Error
	switch {
	case errors.Is(context.Cause(ctx), errUnresponsive), errors.Is(err, ErrUnreachable):
		return MissUnreachable
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return MissTimeout
	case errors.Is(err, ErrTooLarge):
		return MissTooLarge
	case errors.Is(err, errOlder):
		return MissOlder
	case !errors.As(err, &e):
		return MissError
	}
	switch e.Reason {
	case millrace.ReasonDeadline:
		return MissTimeout
	case millrace.ReasonOverloaded:
		return MissOverloaded
	case millrace.ReasonNotHere:
		return MissModel
	}
	return MissError
}

// Nothing returns the refusal of a request of which no partition was answered. An empty
// page instead would look like an empty feed. o.Missing must not be empty.
func (a *Asking) Nothing(o Outcome) error {
	counts := map[string]int{}
	for _, why := range o.Missing {
		counts[why]++
	}
	e := &millrace.Error{Reason: millrace.ReasonUnavailable, WayOut: "try again after a pause; if it lasts, see what millrace cluster show says of the index nodes"}
	switch n := len(o.Missing); {
	case counts[MissModel] == n:
		return a.nobodyHas()
	case counts[MissOlder] == n:
		e.WayOut = "upgrade the index nodes, and the brokers after them; until then only first pages without weights of a variant are answered"
	case counts[MissTimeout] == n:
		e.Reason, e.WayOut = millrace.ReasonDeadline, "allow more time or ask for fewer entities"
	case counts[MissOverloaded] == n:
		e.Reason, e.WayOut = millrace.ReasonOverloaded, "try again after a pause"
	case counts[MissTooLarge] == n:
		e.Reason, e.WayOut = millrace.ReasonTooLarge, questions.FewerItems
	}
	var whys []string
	for _, why := range slices.Sorted(maps.Keys(counts)) {
		whys = append(whys, fmt.Sprintf("%d %s", counts[why], why))
	}
	e.Detail = "no partition answered: " + strings.Join(whys, ", ")
	return e
}
