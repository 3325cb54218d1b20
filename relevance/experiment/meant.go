package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/document"
)

// Beyond these bounds guards and ramps have no effect. The bounds are checked in documents that
// are put in place now, and not in those that are in place already.
const (
	maxMultiple = 1000        // of a rate: a thousand times a rate of 1 in 1000 is all viewers
	maxLonger   = 3_600_000   // milliseconds: no request lasts an hour
	minAlpha    = 1e-6        // below it confidence intervals are too wide to tell anything, however many viewers there are
	minLeast    = time.Second // guards look once a second if no answers come
)

// checkMeant adds to f what has no effect in a document, since nobody means that: guards that
// can never fire or have nothing to compare with, steps that are too short for guards to look
// at, and so on. It is called for documents that are put in place now, and not for those that
// are in place already.
func (d *Document) checkMeant(f *faults) {
	for i := range d.Experiments {
		e, path := &d.Experiments[i], fmt.Sprintf("experiments[%d]", i)
		if o := e.Outcomes; o != nil && strings.Contains(o.AnswerField, ".") {
			f.addf(path+".outcomes.answer_field", "write outcomes with a field of their own for it", "%.100q is within another field, and only a field of the record itself is read", o.AnswerField)
		}
		if o := e.Outcomes; o != nil && o.Topic != "" && !isTopic(o.Topic) {
			f.addf(path+".outcomes.topic", fmt.Sprintf("write 1 to %d letters, digits, '.', '_' and '-', as Kafka has it", maxTopicBytes), "%.100q can be no topic", o.Topic)
		}
		if r := e.Ramp; r != nil && e.State != Stopped && len(r.Steps) > 0 && slices.Max(r.Steps) < e.Share {
			f.addf(path+".ramp.steps", "write a step above it, lower the share, or leave the ramp out", "it would never ramp: its last step is %d, and the share is %d already", slices.Max(r.Steps), e.Share)
		}
		if e.State != Stopped && isNever(e.Targeting) {
			wayOut := "leave it out for everybody; or leave it out and make this a draft, which gives a variant to forced viewers alone"
			if e.State == Draft {
				wayOut = "leave it out: a draft gives a variant to forced viewers alone"
			}
			f.addf(path+".targeting", wayOut, "it is true of nobody")
		}
		if r := e.Ramp; r != nil && r.Least > 0 && r.Least < minLeast {
			f.addf(path+".ramp.least", "write a time such as 1h, or leave it out", "%s is shorter than %s, the longest that guards wait between two looks", r.Least, minLeast)
		}
		if r := e.Ramp; r != nil && r.Viewers == 0 && e.State != Stopped {
			f.addf(path+".ramp.viewers", "write how many of each variant, such as 1000", "guards would be asked at a step before anybody has seen it")
		}
		if why := e.ComparesNothing(); why != "" && e.Guards != nil && e.State != Stopped {
			f.addf(path+".guards", e.comparesWayOut(), "%s", why)
		}
		if e.Guards != nil {
			e.Guards.checkMeant(f, path+".guards", d.at(path+".guards"))
		}
		for j := range e.Variants {
			at := fmt.Sprintf("%s.variants[%d].set", path, j)
			e.Variants[j].Set.checkMeant(f, at, d.at(at))
		}
	}
}

// at returns the YAML at a path; nil if there is none, or if the document was not read from
// YAML.
func (d *Document) at(path string) *document.Node {
	n := d.root
	for n != nil && path != "" {
		var step string
		step, path = cutStep(path)
		n = child(n, step)
	}
	return n
}

// checkMeant refuses a guard that is written as 0 or as nothing, and guards that can never fire.
// Somebody who writes "refused: 0" means that not one request may be refused. But 0 stands for
// no limit, so nothing would be guarded. n is the YAML of the guards; nil: not read from YAML.
func (g *Guards) checkMeant(f *faults, path string, n *document.Node) {
	g.checkNever(f, path)
	if n == nil {
		return
	}
	zero := map[string]string{"alpha": fmt.Sprintf("write a chance such as 0.01, or leave it out for %v", defaultAlpha)}
	for _, l := range g.limits() {
		switch {
		case l.value != 0:
		case l.least == 1:
			zero[l.name] = "write a multiple of the control's, 1 for any more at all, or leave it out"
		case l.most == 1:
			zero[l.name] = "write a part such as 0.01, a hundredth of them more, or leave it out"
		default:
			zero[l.name] = "write how many milliseconds more there may be, such as 1, or leave it out"
		}
	}
	if g.Alpha != 0 {
		delete(zero, "alpha")
	}
	for _, x := range n.Entries {
		if wayOut := zero[x.Key]; wayOut != "" {
			f.addf(path+"."+x.Key, wayOut, "%s is no limit", cmp.Or(x.Value.Text, "nothing"))
		}
	}
}

// checkNever refuses guards that can never fire.
func (g *Guards) checkNever(f *faults, path string) {
	const multiple = "write a multiple of the control's, such as 1.5, or leave it out"
	never := func(name, wayOut string, value, most float64) {
		if value > most {
			f.addf(path+"."+name, wayOut, "%v would never pause anything: it is more than %v", value, most)
		}
	}
	for _, l := range g.limits() {
		switch {
		case l.most == 1 && l.value == 1:
			f.addf(path+"."+l.name, "write a part, such as 0.1: a tenth of them more", "1 would never pause anything: no part is larger than the whole")
		case l.name == "milliseconds", l.name == "p99":
			never(l.name, "write milliseconds, such as 20, or leave it out", l.value, maxLonger)
		case l.most != 1:
			never(l.name, multiple, l.value, maxMultiple)
		}
	}
	for _, action := range slices.Sorted(maps.Keys(g.More)) {
		never(fmt.Sprintf("more.%.40s", action), multiple, g.More[action], maxMultiple)
	}
	for _, action := range slices.Sorted(maps.Keys(g.Fewer)) {
		if x := g.Fewer[action]; x > 0 && x < 1./maxMultiple {
			f.addf(fmt.Sprintf("%s.fewer.%.40s", path, action), "write a part, such as 0.8: a fifth fewer viewers; or leave it out", "%v would never pause anything: it is less than %v", x, 1./maxMultiple)
		}
	}
	if g.Alpha > 0 && g.Alpha < minAlpha || g.Alpha == 0.5 {
		f.addf(path+".alpha", "write a chance such as 0.05, or leave it out", "%v is not from %v to below a half: guards would never pause anything, or for nothing", g.Alpha, minAlpha)
	}
}

// checkMeant refuses fields that set nothing: null, no weights, a limit of 0. n is the YAML of
// what the variant sets; nil: there is none, and nothing is checked.
func (s *Sets) checkMeant(f *faults, path string, n *document.Node) {
	if n == nil {
		return // it sets nothing, as a control does
	}
	for _, x := range n.Entries {
		switch {
		case x.Value.Kind == document.Null, x.Key == "limit" && s.Limit == 0, x.Key == "weights" && len(s.Weights) == 0:
			f.addf(path+"."+x.Key, "write what it sets, or leave it out", "it sets nothing")
		case x.Key == "weights":
			for _, w := range x.Value.Entries {
				if w.Value.Kind == document.Null {
					f.addf(path+".weights", "write a number, such as 0", "%.100q has none", w.Key)
				}
			}
		}
	}
}
