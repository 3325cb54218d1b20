package clusters

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/experiments"
)

// Heard says which brokers go by what a command has changed: which of them have read the
// change from etcd and taken it over. Brokers write that to etcd, every few seconds.
type Heard struct {
	By []string `json:"heard_by"` // the names of the brokers that go by the change
	// Silent are those of By that have told etcd nothing lately, and may have ended.
	Silent []string  `json:"silent,omitempty"`
	Not    []unheard `json:"not_heard_by"`
	Fault  string    `json:"fault,omitempty"` // why By and Not may be incomplete
}

// unheard is a broker that does not go by what was changed.
type unheard struct {
	Broker string    `json:"broker"`
	Admin  string    `json:"admin,omitempty"` // host:port of its admin port; "": it has none
	Told   time.Time `json:"told"`            // when it last told etcd something, by its clock
	says   string    // the line that is printed about it
}

// HeardOf waits until all registered brokers go by what a client has changed, for 3 s at
// most, and returns which do. It returns nil if the client has changed nothing that brokers
// go by.
func HeardOf(ctx context.Context, cl *cluster.Client) *Heard {
	of := cl.Written()
	if len(of) == 0 {
		return nil
	}
	return heardBy(brokers.Heard(ctx, cl, of))
}

// heardBy divides brokers into those that go by the changes and those that do not. err is
// why all may be incomplete; nil: it is complete.
func heardBy(all []brokers.Hearer, err error) *Heard {
	h := &Heard{By: []string{}, Not: []unheard{}}
	if err != nil {
		h.Fault = err.Error()
	}
	now := time.Now()
	for _, b := range all {
		if len(b.Behind) > 0 {
			h.Not = append(h.Not, unheard{b.Name, b.Admin, b.Told, notHeard(&b, now)})
			continue
		}
		if h.By = append(h.By, b.Name); b.Silent(now) > 0 {
			h.Silent = append(h.Silent, b.Name)
		}
	}
	return h
}

// notHeard returns a line that says that a broker does not go by what was changed, and
// where to look for the cause.
func notHeard(b *brokers.Hearer, now time.Time) string {
	look := "its log says why"
	if b.Admin != "" {
		look = "see millrace doctor --admin " + b.Admin
	}
	silent := b.Silent(now)
	var taken []string
	for _, x := range b.Behind {
		if x.Heard {
			taken = append(taken, wordsOf(x.Written))
		}
	}
	switch {
	case silent > 0:
		return fmt.Sprintf("NOT HEARD by %s, which last told etcd something %s ago: if it still answers, it goes on with what it took over before; %s", b.Name, silent.Round(time.Second), look)
	case len(taken) == len(b.Behind):
		slices.Sort(taken)
		return fmt.Sprintf("NOT TAKEN OVER by %s: it has heard of %s, and goes on with what it took over before; its log says why", b.Name, strings.Join(taken, ", "))
	}
	return fmt.Sprintf("NOT HEARD by %s yet: it goes on with what it took over before; %s", b.Name, look)
}

// maxUnheard is how many brokers that have not heard get a line of their own.
const maxUnheard = 10

// Write prints how many brokers have heard in one line, and then a line for each that has
// not.
func (h *Heard) Write(w io.Writer) error {
	var lines []string
	of := len(h.By) + len(h.Not)
	switch {
	case h.Fault != "":
		lines = append(lines, "whether brokers have heard of it is not known: "+h.Fault)
	case of == 0:
		lines = append(lines, "no broker is registered: whether one has heard of it is not known")
	case len(h.Not) == 0:
		lines = append(lines, "heard by "+countOf(of))
	case len(h.By) > 0:
		lines = append(lines, fmt.Sprintf("heard by %d of %s", len(h.By), countOf(of)))
	}
	for _, x := range h.Not[:min(len(h.Not), maxUnheard)] {
		lines = append(lines, x.says)
	}
	if more := len(h.Not) - maxUnheard; more > 0 {
		lines = append(lines, fmt.Sprintf("NOT HEARD by %d more; see millrace cluster show", more))
	}
	if n := len(h.Silent); n > 0 {
		lines = append(lines, fmt.Sprintf("%s of these told etcd nothing of late, and may have ended: see millrace cluster show", countOf(n)))
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// countOf returns a number of brokers in words, such as "1 broker".
func countOf(brokers int) string {
	if brokers == 1 {
		return "1 broker"
	}
	return fmt.Sprintf("%d brokers", brokers)
}

// TellHeard prints which brokers go by what a client has changed, if it has changed
// anything that they go by. A broker that does not go by it is no error: the only error is
// that of writing to w.
func TellHeard(ctx context.Context, w io.Writer, cl *cluster.Client) error {
	if h := HeardOf(ctx, cl); h != nil {
		return h.Write(w)
	}
	return nil
}

// TellAllHeard prints which brokers go by all that etcd has, for a command that restored
// the state in etcd.
func TellAllHeard(ctx context.Context, w io.Writer, cl *cluster.Client) error {
	return heardBy(brokers.All(ctx, cl)).Write(w)
}

// wordsOf returns the usual words for something that brokers go by, such as "feed news".
func wordsOf(w cluster.Written) string {
	words, ok := map[string][2]string{
		feeds.Kind: {"feeds", "feed "}, experiments.Kind: {"experiments", "document "}, indexnode.ModelsKind: {"models", "model "},
		artefacts.CondemnedKind: {"condemned versions", "what is condemned of model "}, cluster.TraceKind: {"traces", "the trace of "}, cluster.SecretsKind: {"page keys", "page keys: "},
	}[w.Kind]
	switch {
	case !ok:
		return strings.TrimSpace(w.Kind + " " + w.Name)
	case w.Name == "":
		return words[0]
	}
	return words[1] + w.Name
}

// Broker is a broker that is registered, as commands show it.
type Broker struct {
	Name    string    `json:"name"`
	Addr    string    `json:"addr"`
	Admin   string    `json:"admin,omitempty"`
	Version string    `json:"version"`
	Told    time.Time `json:"told"`             // when it last told etcd something, by its clock
	Silent  float64   `json:"silent_seconds"`   // how long ago that was, if it is too long; 0: the broker is not silent
	Behind  []behind  `json:"behind,omitempty"` // none: it goes by all that etcd has
}

// behind is one thing in etcd that a broker does not go by as etcd has it.
type behind struct {
	Of        string `json:"of"`              // what it is, as wordsOf has it: feeds, models, experiments, ..
	Revisions int64  `json:"revisions"`       // how many revisions of etcd it is behind; 0: it has read the newest, and could not take all of it over
	Ahead     bool   `json:"ahead,omitempty"` // it goes by something newer, which etcd has lost
}

// Brokers returns the registered brokers, sorted by name, and whether they go by all that
// etcd has. Brokers of versions too old to register are missing. With an error, the list
// may be incomplete.
func (f *Flags) Brokers(ctx context.Context) ([]Broker, error) {
	cl, err := f.OpenReadOnly(ctx)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	all, err := brokers.All(ctx, cl)
	shown := []Broker{}
	for _, b := range all {
		x := Broker{Name: b.Name, Addr: b.Addr, Admin: b.Admin, Version: b.Version, Told: b.Told, Silent: b.Silent(time.Now()).Round(time.Second).Seconds()}
		for _, w := range b.Behind {
			if w.Ahead {
				x.Behind = append(x.Behind, behind{Of: wordsOf(w.Written), Ahead: true})
				continue
			}
			x.Behind = append(x.Behind, behind{Of: wordsOf(w.Written), Revisions: max(0, w.Revision-b.GoesBy[w.Kind].Revision)})
		}
		shown = append(shown, x)
	}
	return shown, err
}

// State says in words whether a broker goes by all that etcd has, and if not, why not.
func (b *Broker) State() string {
	var lost, not, ahead []string
	most := int64(0)
	for _, x := range b.Behind {
		most = max(most, x.Revisions)
		switch {
		case x.Ahead:
			ahead = append(ahead, x.Of)
		case x.Revisions > 0:
			lost = append(lost, x.Of)
		default:
			not = append(not, x.Of)
		}
	}
	var says []string
	if b.Silent > 0 {
		says = append(says, fmt.Sprintf("SILENT for %s", time.Duration(b.Silent)*time.Second))
	}
	if len(lost) > 0 {
		says = append(says, fmt.Sprintf("BEHIND in %s, by %d revisions of etcd", strings.Join(lost, ", "), most))
	}
	if len(not) > 0 {
		says = append(says, fmt.Sprintf("could NOT TAKE OVER all %s", strings.Join(not, ", ")))
	}
	if len(ahead) > 0 {
		says = append(says, fmt.Sprintf("ahead of etcd, which has lost state, in %s", strings.Join(ahead, ", ")))
	}
	if len(says) == 0 {
		return "goes by all there is"
	}
	return strings.Join(says, "; ")
}

// Well reports whether a broker goes by all that etcd has, and is not silent.
func (b *Broker) Well() bool { return b.Silent == 0 && len(b.Behind) == 0 }

// Faulty reports whether a broker is behind etcd although it has had enough time to hear
// of everything (see [brokers.All]). A broker that is ahead is not at fault: etcd has lost
// state. A broker that is only silent is not at fault either: it may have ended.
func (b *Broker) Faulty() bool {
	return slices.ContainsFunc(b.Behind, func(x behind) bool { return !x.Ahead })
}

// BrokerFaults returns a line for each broker that is at fault.
func BrokerFaults(all []Broker) (faults []string) {
	for _, b := range all {
		if b.Faulty() {
			faults = append(faults, fmt.Sprintf("broker %s: %s", b.Name, b.State()))
		}
	}
	return faults
}
