package broker

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
)

// hints says why a first page is empty, by the counts that nodes sent with their answers.
// A later page has no hints.
func hints(q *question, o fanout.Outcome) (all []string) {
	if len(q.Query.Exclude) > 0 {
		return nil // an empty later page is the end
	}
	if missing := o.Left(); missing.Len() > 0 {
		all = append(all, fmt.Sprintf("%d of %d partitions did not answer; coverage.missing says why", missing.Len(), q.Want.Len()))
	}
	var s nodev1.Stages
	for _, pt := range o.Parts {
		n := pt.Resp.GetStages()
		s.Candidates += n.GetCandidates()
		s.FilteredFalse += n.GetFilteredFalse()
		s.FilteredNull += n.GetFilteredNull() + n.GetFilteredError() + n.GetFilteredNan()
	}
	switch {
	case s.Candidates == 0:
		all = append(all, fmt.Sprintf("none of the %d entities has a record%s%s: look at how entities and types are written, at the window, and whether their records are loaded", q.Distinct, ofTypes(q.Query.Types), within(q.Query)))
	case s.FilteredFalse+s.FilteredNull == s.Candidates:
		all = append(all, fmt.Sprintf("the filter drops all %d candidates: it is false for %d and has no value for %d; explain counts them by clause, and why looks at one record", s.Candidates, s.FilteredFalse, s.FilteredNull))
	}
	return all
}

// ofTypes names the types that were asked for, five at most; "" if all types were.
func ofTypes(types []string) string {
	const most = 5
	switch n := len(types); {
	case n == 0:
		return ""
	case n > most:
		return fmt.Sprintf(" of %s or %d other types", strings.Join(types[:most], ", "), n-most)
	}
	return " of type " + strings.Join(types, ", ")
}

// within says in words what the window is; "" if neither end is given.
func within(r *nodev1.QueryRequest) (s string) {
	if from := millrace.Time(r.FromMs); from > millrace.MinTime {
		s = " from " + from.String()
	}
	if to := millrace.Time(r.ToMs); to <= millrace.MaxTime {
		s += " to " + to.String()
	}
	return s
}
