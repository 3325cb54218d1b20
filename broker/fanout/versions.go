package fanout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/questions"
)

// absent remembers for absentFor which nodes lack which models, so that other replicas are
// asked first.
type absent struct {
	mu struct {
		sync.Mutex
		until map[absence]time.Time
	}
}

// absence is a model that a node lacks.
type absence struct {
	node millrace.NodeID
	sum  string // the model's checksum
}

const (
	absentFor  = time.Second // a node may get the model at any time
	maxAbsents = 10_000      // entries; then all are forgotten
)

func (a *absent) note(node millrace.NodeID, sum string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.until == nil || len(a.mu.until) >= maxAbsents {
		a.mu.until = map[absence]time.Time{}
	}
	a.mu.until[absence{node, sum}] = time.Now().Add(absentFor)
}

// lacking returns the nodes that lacked the model with the checksum sum less than absentFor
// ago.
func (a *absent) lacking(sum string) (nodes []millrace.NodeID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for is, until := range a.mu.until {
		switch {
		case time.Now().After(until):
			delete(a.mu.until, is)
		case is.sum == sum:
			nodes = append(nodes, is.node)
		}
	}
	return nodes
}

// lack notes that a node does not have the model of a group.
func (a *Asking) lack(id millrace.NodeID, g *questions.Group) {
	a.fan.absent.note(id, g.Query.ModelSum)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.lacked = g.Model()
	if !slices.Contains(a.mu.lacking, id) {
		a.mu.lacking = append(a.mu.lacking, id)
	}
}

// spent reports whether maxReplicas of the nodes tried count, so that no more may be asked.
// A node that only lacked the model does not count.
func (a *Asking) spent(tried []millrace.NodeID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, id := range tried {
		if !slices.Contains(a.mu.lacking, id) {
			n++
		}
	}
	return n >= maxReplicas
}

// nobodyHas returns the refusal when every replica that could be asked lacks the model.
func (a *Asking) nobodyHas() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ids []string
	for _, id := range a.mu.lacking {
		ids = append(ids, string(id))
	}
	slices.Sort(ids)
	v := a.mu.lacked
	return &millrace.Error{
		Reason: millrace.ReasonUnavailable, Field: "model", Detail: fmt.Sprintf("no replica that could be asked has model %s (%.12s): it is not on %s", v, v.Sum, strings.Join(ids, ", ")),
		WayOut: "see millrace model list for why; push it again, roll it back, or ask by another model",
	}
}

// LacksWeights reports whether err is a node's refusal because the model version does not
// have some of the weights that the question sets.
func LacksWeights(err error) bool {
	var e *millrace.Error
	return errors.As(err, &e) && e.Reason == millrace.ReasonUnknown && e.Field == "weights"
}

// IsCondemned reports whether err is a node's refusal because the model version is
// condemned: it has failed, and must not rank any more.
func IsCondemned(err error) bool {
	var e *millrace.Error
	return errors.As(err, &e) && e.Reason == millrace.ReasonCondemned
}

// RefusedBy returns the model version, with the checksum of its weights, that a node
// refused to rank by; zero if none was refused.
func (a *Asking) RefusedBy() questions.Weighted {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.RefusedBy
}
