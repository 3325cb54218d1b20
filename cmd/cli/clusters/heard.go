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

// Heard is which brokers go by what a command has changed.
type Heard struct {
	By []string `json:"heard_by"` // names
	// Silent are those of By that have told nothing since, and may have ended.
	Silent []string  `json:"silent,omitempty"`
	Not    []unheard `json:"not_heard_by"`
	Fault  string    `json:"fault,omitempty"` // why it is not known
}

// unheard is a broker that does not go by what was changed.
type unheard struct {
	Broker string    `json:"broker"`
	Admin  string    `json:"admin,omitempty"`
	Told   time.Time `json:"told"` // its last word, by its clock
	says   string
}

// HeardOf waits until all brokers that are registered go by what a client has changed,
// some seconds at most; nil if it has changed nothing that brokers go by.
func HeardOf(ctx context.Context, cl *cluster.Client) *Heard {
	of := cl.Written()
	if len(of) == 0 {
		return nil
	}
	return heardBy(brokers.Heard(ctx, cl, of))
}

// heardBy says of brokers which go by changes.
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

// notHeard says of a broker that it does not go by what was changed.
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

// maxUnheard is how many brokers are told of that have not heard.
const maxUnheard = 10

// Write tells of it, in a line, and one of each broker that has not heard.
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

func countOf(brokers int) string {
	if brokers == 1 {
		return "1 broker"
	}
	return fmt.Sprintf("%d brokers", brokers)
}

// TellHeard tells which brokers go by what a client has changed, if it has changed
// anything that they go by. It is no failure that one does not.
func TellHeard(ctx context.Context, w io.Writer, cl *cluster.Client) error {
	if h := HeardOf(ctx, cl); h != nil {
		return h.Write(w)
	}
	return nil
}

// TellAllHeard is [TellHeard] of all that etcd has, for a command that brought it back.
func TellAllHeard(ctx context.Context, w io.Writer, cl *cluster.Client) error {
	return heardBy(brokers.All(ctx, cl)).Write(w)
}

// wordsOf are what people call something that brokers go by.
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
	Told    time.Time `json:"told"`             // its last word, by its clock
	Silent  float64   `json:"silent_seconds"`   // 0: it is not
	Behind  []behind  `json:"behind,omitempty"` // none: it goes by all that etcd has
}

// behind is what a broker does not go by.
type behind struct {
	Of        string `json:"of"`              // feeds, models, experiments, ..
	Revisions int64  `json:"revisions"`       // of etcd; 0: it has heard of it, and could not take all over
	Ahead     bool   `json:"ahead,omitempty"` // of etcd, which has lost what it goes by
}

// Brokers returns the brokers that are registered. Those of a version that registers
// nowhere are none of them.
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

// State says whether a broker goes by all that etcd has.
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

// Well reports whether a broker goes by all that etcd has, and says so.
func (b *Broker) Well() bool { return b.Silent == 0 && len(b.Behind) == 0 }

// Faulty reports whether a broker does not go by what etcd has, though it could have heard
// of it for long: see [brokers.All]. What it is ahead in is etcd's fault, and
// one that is only silent may have ended.
func (b *Broker) Faulty() bool {
	return slices.ContainsFunc(b.Behind, func(x behind) bool { return !x.Ahead })
}

// BrokerFaults says which brokers are at fault.
func BrokerFaults(all []Broker) (faults []string) {
	for _, b := range all {
		if b.Faulty() {
			faults = append(faults, fmt.Sprintf("broker %s: %s", b.Name, b.State()))
		}
	}
	return faults
}
