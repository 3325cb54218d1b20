package fanout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/maptest"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/rpcerr"
)

// Of two versions of a built-in model, one makes the answer, and the rest is
// missing.
func TestTwoVersionsNeverMeet(t *testing.T) {
	var few, many topology.Set
	few.Add(1)
	many.Add(2)
	many.Add(3)
	o := Outcome{Parts: []Part{
		{Node: "n0", Covered: few, Resp: &nodev1.QueryResponse{Model: "home", ModelVersion: "1"}}, {Node: "n1", Covered: many, Resp: &nodev1.QueryResponse{Model: "home", ModelVersion: "2"}},
	}}
	o.oneVersion()
	if len(o.Parts) != 1 || o.Parts[0].Node != "n1" || o.Missing[1] != MissModel || len(o.Missing) != 1 {
		t.Fatalf("%+v", o)
	}
}

// A node may say whatever it likes of partitions that there are not.
func TestAnswersOfNoPartition(t *testing.T) {
	pt := Part{Covered: topology.All(), Resp: &nodev1.QueryResponse{Partitions: &nodev1.Partitions{
		Answered: []int32{-1, 5, 719, 720, 800, 1 << 30}, AppliedContent: make([]int64, 6), AppliedFeatures: make([]int64, 6),
	}}}
	var got []int
	for a := range pt.Answers() {
		got = append(got, int(a.Partition))
	}
	if !slices.Equal(got, []int{5, 719}) {
		t.Errorf("it answers %v", got)
	}
}

// Where nothing was answered, the refusal says why, by how many partitions.
func TestNothingSaysWhy(t *testing.T) {
	for _, c := range []struct {
		missing map[millrace.Partition]string
		reason  millrace.Reason
		why     string
	}{
		{map[millrace.Partition]string{1: MissTimeout, 2: MissTimeout}, millrace.ReasonDeadline, "2 timeout"},
		{map[millrace.Partition]string{1: MissOverloaded}, millrace.ReasonOverloaded, "1 overloaded"},
		{map[millrace.Partition]string{1: MissTooLarge}, millrace.ReasonTooLarge, "1 too_large"},
		{map[millrace.Partition]string{1: MissTimeout, 2: MissBehind, 3: MissBehind}, millrace.ReasonUnavailable, "2 behind, 1 timeout"},
		{map[millrace.Partition]string{1: MissOlder, 2: MissOlder}, millrace.ReasonUnavailable, "2 older"},
		{map[millrace.Partition]string{1: MissModel, 2: MissOlder}, millrace.ReasonUnavailable, "1 no_model, 1 older"},
	} {
		var e *millrace.Error
		if err := (&Asking{}).Nothing(Outcome{Missing: c.missing}); !errors.As(err, &e) || e.Reason != c.reason || e.Detail != "no partition answered: "+c.why || e.WayOut == "" || strings.Contains(e.WayOut, "upgrade") != (c.why == "2 older") {
			t.Errorf("%v: %+v", c.missing, e)
		}
	}
	a := &Asking{fan: &Fanout{}}
	for _, id := range []millrace.NodeID{"n2", "n1", "n2"} {
		a.lack(id, &questions.Group{Query: &nodev1.QueryRequest{Model: "jobs", ModelVersion: "3", ModelSum: "0123456789abcdef"}})
	}
	var e *millrace.Error
	if err := a.Nothing(Outcome{Missing: map[millrace.Partition]string{1: MissModel, 2: MissModel}}); !errors.As(err, &e) || e.Reason != millrace.ReasonUnavailable || e.Field != "model" || !strings.HasSuffix(e.Detail, "(0123456789ab): it is not on n1, n2") {
		t.Errorf("%+v", e)
	}
}

// setOf is a set of partitions.
func setOf(all ...millrace.Partition) (s topology.Set) {
	for _, p := range all {
		s.Add(p)
	}
	return s
}

// Of each group the version that covers most is kept, of two that cover equally many the
// higher; a partition that one group then lacks is missing for all.
func TestOneVersionOfEachGroup(t *testing.T) {
	g, h := &questions.Group{}, &questions.Group{}
	part := func(of *questions.Group, version string, covered ...millrace.Partition) Part {
		return Part{Group: of, Covered: setOf(covered...), Resp: &nodev1.QueryResponse{ModelVersion: version}}
	}
	for name, c := range map[string]struct {
		parts   []Part
		kept    string
		missing []millrace.Partition
	}{
		"one":                   {[]Part{part(g, "1", 1), part(g, "1", 2)}, "1:1 1:2", nil},
		"two groups of a kind":  {[]Part{part(g, "1", 1), part(h, "2", 1)}, "1:1 2:1", nil},
		"the higher of equals":  {[]Part{part(g, "1", 1), part(g, "2", 2)}, "2:2", []millrace.Partition{1}},
		"whichever comes first": {[]Part{part(g, "2", 2), part(g, "1", 1)}, "2:2", []millrace.Partition{1}},
		"the one of most":       {[]Part{part(g, "1", 1), part(g, "2", 2), part(g, "1", 3)}, "1:1 1:3", []millrace.Partition{2}},
		"of the other group":    {[]Part{part(g, "1", 1, 2), part(h, "1", 1), part(h, "2", 2, 3)}, "1:2 2:2-3", []millrace.Partition{1}},
		"none is left":          {[]Part{part(g, "1", 1, 2), part(h, "1", 1), part(h, "2", 2)}, "1:2 2:2", []millrace.Partition{1}},
		"a part of one group":   {[]Part{part(g, "1", 1), part(h, "1", 1), part(h, "2", 2, 3)}, "2:2-3", []millrace.Partition{1}},
	} {
		o := Outcome{Parts: c.parts}
		o.oneVersion()
		var kept []string
		for _, pt := range o.Parts {
			kept = append(kept, pt.Resp.ModelVersion+":"+pt.Covered.Ranges())
		}
		if strings.Join(kept, " ") != c.kept || !slices.Equal(slices.Sorted(maps.Keys(o.Missing)), c.missing) {
			t.Errorf("%s: kept %v, missing %v", name, kept, o.Missing)
		}
		for p, why := range o.Missing {
			if why != MissModel {
				t.Errorf("%s: %d is missing by %s", name, p, why)
			}
		}
	}
}

// A node is believed of the partitions that it was asked for, if what it says fits together.
func TestPartitionsOfAnAnswer(t *testing.T) {
	want := setOf(1, 2, 3)
	three := []int64{7, 8, 9}
	for name, c := range map[string]struct {
		said    *nodev1.Partitions
		covered topology.Set
		missing map[millrace.Partition]string
	}{
		"all":     {&nodev1.Partitions{Answered: []int32{1, 2, 3}, AppliedContent: three, AppliedFeatures: three, LagMs: three}, want, nil},
		"no lags": {&nodev1.Partitions{Answered: []int32{1, 2, 3}, AppliedContent: three, AppliedFeatures: three}, want, nil},
		"others": {&nodev1.Partitions{Answered: []int32{-1, 2, 720}, AppliedContent: three, AppliedFeatures: three, Missing: map[int32]string{1: "not_ready"}}, setOf(2),
			map[millrace.Partition]string{1: MissBehind, 3: MissError}},
		"reasons": {&nodev1.Partitions{Missing: map[int32]string{1: "not_hosted", 2: "deadline", 3: "whatever", 4: "not_ready"}}, topology.Set{},
			map[millrace.Partition]string{1: MissNoReplica, 2: MissTimeout, 3: MissError}},
		"few offsets":  {&nodev1.Partitions{Answered: []int32{1, 2, 3}, AppliedContent: three[:2], AppliedFeatures: three}, topology.Set{}, none(want, MissError).Missing},
		"few features": {&nodev1.Partitions{Answered: []int32{1, 2, 3}, AppliedContent: three, AppliedFeatures: three[:2]}, topology.Set{}, none(want, MissError).Missing},
		"few lags":     {&nodev1.Partitions{Answered: []int32{1, 2, 3}, AppliedContent: three, AppliedFeatures: three, LagMs: three[:2]}, topology.Set{}, none(want, MissError).Missing},
		"nothing":      {nil, topology.Set{}, none(want, MissError).Missing},
	} {
		covered, missing := partitionsOf(&nodev1.QueryResponse{Partitions: c.said}, want)
		if covered != c.covered || !maps.Equal(missing, c.missing) {
			t.Errorf("%s: %s, %v", name, covered.Ranges(), missing)
		}
	}
	if covered, _ := partitionsOf(&nodev1.QueryResponse{Partitions: &nodev1.Partitions{Answered: []int32{0, 719}, AppliedContent: three[:2], AppliedFeatures: three[:2]}}, topology.All()); covered != setOf(0, 719) {
		t.Errorf("%s of the first and the last", covered.Ranges())
	}
	pt := Part{Covered: setOf(0, 3), Resp: &nodev1.QueryResponse{Partitions: &nodev1.Partitions{Answered: []int32{1, 0, 3}, AppliedContent: three, AppliedFeatures: []int64{4, 5, 6}, LagMs: []int64{0, 1500, 0}}}}
	if got := slices.Collect(pt.Answers()); !slices.Equal(got, []Answered{{0, 8, 5, 1500 * time.Millisecond}, {3, 9, 6, 0}}) {
		t.Errorf("%v", got)
	}
	for a := range pt.Answers() {
		if a.Partition != 0 {
			t.Errorf("%v", a)
		}
		break
	}
}

// What is known of parts of a question is put together.
func TestOutcomes(t *testing.T) {
	var o Outcome
	o.add(none(topology.Set{}, MissError))
	if o.all(MissError) || o.Missing != nil {
		t.Errorf("%+v", o)
	}
	o.add(none(setOf(1), MissTimeout))
	o.add(none(setOf(2), MissNoReplica))
	o.add(none(setOf(3), MissNoReplica))
	if o.all(MissTimeout) || o.all(MissNoReplica) || o.Left() != setOf(1, 2, 3) {
		t.Errorf("%+v", o)
	}
	if o = o.explained(map[millrace.Partition]string{1: MissError, 2: MissBehind}); !maps.Equal(o.Missing, map[millrace.Partition]string{1: MissTimeout, 2: MissBehind, 3: MissNoReplica}) {
		t.Errorf("%+v", o)
	}
	shed := none(setOf(1, 2), MissOverloaded)
	if !shed.all(MissOverloaded) || shed.all(MissTimeout) {
		t.Errorf("%+v", shed)
	}
	shed.Parts = []Part{{Node: "n0", Covered: setOf(2, 3)}, {Node: "n1", Covered: setOf(1)}}
	if shed.all(MissOverloaded) {
		t.Errorf("%+v", shed)
	}
	if shed.uncover(); len(shed.Parts) != 1 || shed.Parts[0].Covered != setOf(3) {
		t.Errorf("%+v", shed)
	}
}

// An error of a call says why its partitions are missing.
func TestReasonsOfCalls(t *testing.T) {
	open, over := t.Context(), func(cause error) context.Context {
		ctx, end := context.WithCancelCause(t.Context())
		end(cause)
		return ctx
	}
	refused := func(r millrace.Reason) error { return fmt.Errorf("node: %w", &millrace.Error{Reason: r}) }
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{open, errors.New("x"), MissError}, {open, ErrUnreachable, MissUnreachable}, {open, ErrTooLarge, MissTooLarge}, {open, errOlder, MissOlder}, {open, context.DeadlineExceeded, MissTimeout},
		{open, context.Canceled, MissError}, {open, refused(millrace.ReasonDeadline), MissTimeout}, {open, refused(millrace.ReasonOverloaded), MissOverloaded}, {open, refused(millrace.ReasonNotHere), MissModel},
		{open, refused(millrace.ReasonInvalid), MissError}, {over(nil), errors.New("x"), MissTimeout}, {over(errUnresponsive), context.Canceled, MissUnreachable}, {over(nil), ErrUnreachable, MissUnreachable},
		{over(nil), ErrTooLarge, MissTimeout},
	} {
		if got := reason(c.ctx, c.err); got != c.want {
			t.Errorf("%v, %v: %s, want %s", context.Cause(c.ctx), c.err, got, c.want)
		}
	}
	for err, is := range map[error]bool{
		context.Canceled: true, fmt.Errorf("x: %w", context.DeadlineExceeded): true, refused(millrace.ReasonDeadline): true, refused(millrace.ReasonOverloaded): false, errors.New("x"): false,
	} {
		if ended(err) != is {
			t.Errorf("%v only says that time is up: %t", err, !is)
		}
	}
}

// What gRPC says of a call by itself is told from what the node says.
func TestErrorsOfNodes(t *testing.T) {
	overloaded := &millrace.Error{Reason: millrace.ReasonOverloaded, Detail: "busy", WayOut: "wait"}
	var e *millrace.Error
	if err := nodeError(nil); err != nil {
		t.Error(err)
	}
	if err := nodeError(status.Error(codes.Unavailable, "gone")); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "gone") {
		t.Error(err)
	}
	if err := nodeError(status.Error(codes.ResourceExhausted, "much")); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "much") {
		t.Error(err)
	}
	for _, r := range []millrace.Reason{millrace.ReasonOverloaded, millrace.ReasonUnavailable} { // by the same codes
		if err := nodeError(rpcerr.Status(&millrace.Error{Reason: r, Detail: overloaded.Detail})); errors.Is(err, ErrUnreachable) || errors.Is(err, ErrTooLarge) || !errors.As(err, &e) || e.Reason != r {
			t.Errorf("%s: %v", r, err)
		}
	}
	if err := nodeError(status.Error(codes.DeadlineExceeded, "late")); !errors.As(err, &e) || e.Reason != millrace.ReasonDeadline {
		t.Error(err)
	}
	if plain := errors.New("plain"); nodeError(plain) != plain {
		t.Error("another error is changed")
	}
}

// Admission control learns of late answers where nodes that answer could have been in time,
// or none answers any more.
func TestEndings(t *testing.T) {
	m := zoned(t, 1, "n0", "n1")
	on := map[millrace.NodeID]millrace.Partition{}
	for p := range millrace.Partition(720) {
		on[m.Replicas(p)[0]] = p
	}
	gone, end := context.WithCancel(t.Context())
	end()
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
	lost := maptest.WithLost(t, m, "n1")
	for name, c := range map[string]struct {
		ctx     context.Context
		m       *topology.Map
		silent  []millrace.NodeID
		until   time.Time
		missing map[millrace.Partition]string
		want    admission.Ending
	}{
		"whole":                    {t.Context(), m, nil, soon, nil, admission.EndWhole},
		"whole, given up":          {gone, m, nil, soon, nil, admission.EndWhole},
		"given up":                 {gone, m, nil, soon, map[millrace.Partition]string{1: MissTimeout}, admission.EndSilent},
		"the nodes' time is up":    {gone, m, nil, past, map[millrace.Partition]string{1: MissTimeout}, admission.EndLate},
		"late":                     {t.Context(), m, nil, soon, map[millrace.Partition]string{on["n1"]: MissTimeout}, admission.EndLate},
		"of a lost node":           {t.Context(), lost, nil, soon, map[millrace.Partition]string{on["n1"]: MissTimeout}, admission.EndPartial},
		"of an unresponsive node":  {t.Context(), m, []millrace.NodeID{"n1"}, soon, map[millrace.Partition]string{on["n1"]: MissTimeout}, admission.EndPartial},
		"of another":               {t.Context(), lost, nil, soon, map[millrace.Partition]string{on["n0"]: MissTimeout}, admission.EndLate},
		"overloaded":               {t.Context(), m, nil, soon, map[millrace.Partition]string{1: MissOverloaded}, admission.EndShed},
		"broken":                   {t.Context(), m, nil, soon, map[millrace.Partition]string{1: MissError}, admission.EndPartial},
		"no node answers any more": {t.Context(), lost, []millrace.NodeID{"n0"}, soon, map[millrace.Partition]string{1: MissNoReplica}, admission.EndLate},
	} {
		f := &Fanout{health: newHealth()}
		for _, id := range c.silent {
			f.health.missBeat(id)
		}
		a := &Asking{fan: f, Map: c.m, Until: c.until}
		if got := a.Ending(c.ctx, Outcome{Missing: c.missing}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
