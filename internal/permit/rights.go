package permit

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace"
)

// Right is something that a caller may ask of a feed besides its pages.
type Right string

// The rights.
const (
	Filter  Right = "filter"  // to add a filter of its own
	Explain Right = "explain" // to ask how an answer was made
	Why     Right = "why"     // to ask what became of a record
	Model   Right = "model"   // to name the model
	Recent  Right = "recent"  // to ask the built-in feeds recent and home, which show everything
)

var allRights = []Right{Filter, Explain, Why, Model, Recent}

// Rights is what a caller may ask. nil Rights permit everything.
type Rights struct {
	Feeds []string `yaml:"feeds,omitempty" default:"all" doc:"which feeds the caller may ask; callers is by the names of identities, and * is every caller that is not named"`
	May   []Right  `yaml:"may,omitempty" choices:"filter, explain, why, model, recent" doc:"what else the caller may ask; without callers each may ask all that feeds and brokers do not forbid"`
}

// others stands in Config.Callers for every caller that is not named there.
const others = "*"

// may reports whether the rights include one.
func (r *Rights) may(right Right) bool { return r == nil || slices.Contains(r.May, right) }

// Feed returns the refusal of a feed that the caller may not ask, else nil. A built-in feed
// needs the right Recent, or to be named in the caller's feeds.
func (i Identity) Feed(name string, builtIn bool) error {
	r := i.Rights
	named := r != nil && slices.Contains(r.Feeds, name)
	if r == nil || named || len(r.Feeds) == 0 && (!builtIn || r.may(Recent)) {
		return nil
	}
	wayOut := fmt.Sprintf("have %s.callers give it the feed", field)
	if len(r.Feeds) > 0 {
		wayOut = fmt.Sprintf("name one of %v, or %s", r.Feeds, wayOut)
	}
	return &millrace.Error{Reason: millrace.ReasonForbidden, Field: "feed", Detail: fmt.Sprintf("%s may not ask feed %.100q", i, name), WayOut: wayOut}
}

// Right returns a refusal if the caller does not have a right, else nil. of is the field of
// the request that needs it.
func (i Identity) Right(right Right, of string) error {
	if i.Rights.may(right) {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonForbidden, Field: of, Detail: fmt.Sprintf("%s has no right to %s", i, right),
		WayOut: fmt.Sprintf("leave it out, or have %s.callers give it the right", field),
	}
}

// checkCallers returns what is wrong with Callers: a name without the role caller, a
// right that does not exist, and an identity with the role caller whose rights are missing.
func (c Config) checkCallers() (errs []error) {
	_, all := c.Callers[others]
	for _, name := range slices.Sorted(maps.Keys(c.Callers)) {
		if name != others && !slices.Contains(c.Identities[name], Caller) {
			errs = append(errs, invalid("callers."+name, "it is no caller", "give it the role caller in identities, or take it out"))
		}
		for _, right := range c.Callers[name].May {
			if !slices.Contains(allRights, right) {
				errs = append(errs, invalid("callers."+name+".may", fmt.Sprintf("%.40q is no right", right), fmt.Sprintf("rights are %v", allRights)))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Identities)) {
		roles := c.Identities[name]
		if _, named := c.Callers[name]; len(c.Callers) > 0 && slices.Contains(roles, Caller) && !named && !all {
			errs = append(errs, invalid("identities."+name, "it is a caller, and callers does not say what it may ask", fmt.Sprintf("give it rights there, or all others by %q", others)))
		}
	}
	return errs
}

// rights returns the rights of an identity; nil if it may ask everything.
func (p *Policy) rights(name string, roles []Role) *Rights {
	if len(p.callers) == 0 || slices.Contains(roles, Operator) {
		return nil
	}
	r, ok := p.callers[name]
	if !ok {
		r = p.callers[others]
	}
	return &r
}
