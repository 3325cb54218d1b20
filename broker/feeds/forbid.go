package feeds

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// Forbid is what callers may not ask, of a feed or of a broker. What either
// forbids is forbidden.
type Forbid struct {
	Filter  bool `yaml:"filter,omitempty" doc:"true: no caller may give a filter of its own"`
	Explain bool `yaml:"explain,omitempty" doc:"true: no caller may ask how an answer was made"`
	Why     bool `yaml:"why,omitempty" doc:"true: no caller may ask what became of a record"`
	Model   bool `yaml:"model,omitempty" doc:"true: no caller may name another model than the feed's"`
	Window  bool `yaml:"window,omitempty" doc:"true: no caller may name an instant of its own (as_of), or ask for what lies before the feed's window"`
	Recent  bool `yaml:"recent,omitempty" doc:"true: recent and home as they are built in, which show everything, are not served"` // a feed forbids it while it is defined
}

// Or returns what f or g forbids, or both.
func (f Forbid) Or(g Forbid) Forbid {
	return Forbid{f.Filter || g.Filter, f.Explain || g.Explain, f.Why || g.Why, f.Model || g.Model, f.Window || g.Window, f.Recent || g.Recent}
}

// Forbids returns what a feed's definition forbids: what it lists, and what Private implies.
func (f *Feed) Forbids() Forbid {
	return f.Forbid.Or(Forbid{Explain: f.Private, Why: f.Private, Window: f.Private, Recent: f.Private})
}

// Permitted refuses a request that gives what no forbids: an instant, a filter, explain or
// another model than the feed's. no.Window forbids an instant (as_of), since at another
// instant than the present the feed's filter and window would show what has expired, or what
// is not to be seen yet. A window of the request's own is not refused: the broker narrows it.
func Permitted(no Forbid, feed *Feed, req *feedv1.GetFeedRequest) error {
	switch {
	case no.Window && req.GetAsOf() != nil:
		return forbidden("as_of", feed.Name)
	case no.Filter && req.GetFilter() != "":
		return forbidden("filter", feed.Name)
	case no.Explain && req.GetExplain():
		return forbidden("explain", feed.Name)
	case no.Model && req.GetModel() != "" && req.GetModel() != feed.Model:
		return forbidden("model", feed.Name)
	}
	return nil
}

// BuiltInRefused returns the refusal of a built-in feed that [Forbid.Recent] forbids,
// since it would show what other feeds drop.
func BuiltInRefused(name string) *millrace.Error {
	return &millrace.Error{Reason: millrace.ReasonForbidden, Field: "feed", Detail: fmt.Sprintf("the built-in feed %s is not served here", name), WayOut: "name a feed that was defined, or define one of this name"}
}

// forbidden returns the refusal of a request that gives a field which the feed forbids.
func forbidden(field, feed string) error {
	return &millrace.Error{Reason: millrace.ReasonForbidden, Field: field, Detail: fmt.Sprintf("feed %s may not be asked with it", feed), WayOut: "leave it out"}
}

// Discreet returns err. If the feed is private and err is an index node's refusal of the
// filter, it returns a refusal that says less: the node's may name fields that the feed
// never shows, and the feed's own filter.
func (f *Feed) Discreet(err error) error {
	var e *millrace.Error
	if !f.Private || !errors.As(err, &e) || e.Reason != millrace.ReasonFilter {
		return err
	}
	return &millrace.Error{
		Reason: e.Reason, Field: "filter", Detail: fmt.Sprintf("it is no filter for the records of feed %s, which is private and says no more", f.Name),
		WayOut: "see the filter language in docs/filters.md; who runs the feed finds the fault by asking another",
	}
}
