package experiment

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// The bounds of guards and ramps that can do what they are for. Documents that were
// put in place before they were keep what they have.
const (
	maxMultiple = 1000        // of a rate: a control that meets 1 in 1000 leaves no more
	maxLonger   = 3_600_000   // milliseconds: no request lasts an hour
	minAlpha    = 1e-6        // below it intervals of as many viewers as there are tell nothing
	minLeast    = time.Second // guards look once a second
)

// checkNever refuses guards that can never fire, and steps that last too short for
// guards to see them.
func (d *Document) checkNever(f *faults) {
	for i := range d.Experiments {
		e, path := &d.Experiments[i], fmt.Sprintf("experiments[%d]", i)
		if r := e.Ramp; r != nil && r.Least > 0 && r.Least < minLeast {
			f.addf(path+".ramp.least", "write a time such as 1h, or leave it out and write viewers", "%s is shorter than %s, in which guards look once", r.Least, minLeast)
		}
		if e.Guards != nil {
			e.Guards.checkNever(f, path+".guards")
		}
	}
}

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
