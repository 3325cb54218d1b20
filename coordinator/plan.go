package coordinator

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// Layout says which nodes host each partition.
type Layout [partition.Count][]millrace.NodeID

// clone returns a layout that shares nothing with l.
func (l *Layout) clone() (c Layout) {
	for p, owners := range l {
		c[p] = slices.Clone(owners)
	}
	return c
}

// UnmarshalJSON refuses a layout that does not speak of every partition: what it leaves out
// would be taken for a partition that nobody is to host.
func (l *Layout) UnmarshalJSON(body []byte) error {
	var all [][]millrace.NodeID
	if err := json.Unmarshal(body, &all); err != nil {
		return err
	}
	if len(all) != partition.Count {
		return fmt.Errorf("base is of %d partitions, and there are %d", len(all), partition.Count)
	}
	copy(l[:], all)
	return nil
}

// Kind is what a plan is for.
type Kind string

// The kinds of plans.
const (
	Rebalance Kind = "rebalance" // loads changed
	Add       Kind = "add"       // nodes came
	Drain     Kind = "drain"     // nodes are to host nothing
	Replace   Kind = "replace"   // a node takes over from another
	Resize    Kind = "resize"    // another number of replicas is wanted
	Repair    Kind = "repair"    // nodes are gone for good
)

// Status is where a plan is.
type Status string

// A plan is begun running, and ends as done, cancelled or rolled back.
const (
	Running     Status = "running"
	Paused      Status = "paused"       // nothing is begun or routed; what is being built goes on
	Cancelling  Status = "cancelling"   // what is under way ends where it is
	RollingBack Status = "rolling_back" // it returns to what there was before
	Done        Status = "done"
	Cancelled   Status = "cancelled"
	RolledBack  Status = "rolled_back"
)

// Ended reports whether nothing is left to be done.
func (s Status) Ended() bool { return s == Done || s == Cancelled || s == RolledBack }

// words is a status in a sentence.
func (s Status) words() string { return strings.ReplaceAll(string(s), "_", " ") }

// MoveState is where a move is. What comes between, restoring, catching up and
// warming, the new replica tells itself.
type MoveState string

// The states of a move.
const (
	Waiting  MoveState = "waiting"
	Building MoveState = "building" // the new replica is assigned, and not ready yet
	Moved    MoveState = "done"     // the new one is ready, and the old one not assigned any more
)

// Move takes a replica of a partition from one node to another. Without From it
// is one more, without To one less.
type Move struct {
	Partition millrace.Partition `json:"p"`
	From      millrace.NodeID    `json:"from,omitempty"`
	To        millrace.NodeID    `json:"to,omitempty"`
	Lost      bool               `json:"lost,omitempty"` // it was planned as From was given up
	State     MoveState          `json:"state"`
	Since     time.Time          `json:"since,omitzero"` // of the state
	Bytes     int64              `json:"bytes,omitempty"`
}

// String says a move in words.
func (m Move) String() string {
	switch {
	case m.From == "":
		return fmt.Sprintf("%d to %s", m.Partition, m.To)
	case m.To == "":
		return fmt.Sprintf("%d from %s", m.Partition, m.From)
	}
	return fmt.Sprintf("%d from %s to %s", m.Partition, m.From, m.To)
}

// Limits bound what a plan does at a time. What is 0 of a plan's is as the
// coordinator's.
type Limits struct {
	PerNode        int   `json:"per_node,omitempty"`         // moves to a node at a time
	PerSecond      int   `json:"per_second,omitempty"`       // moves begun, in the whole cluster; 0 of the coordinator's, and of what is lost: no bound
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"` // of moves begun; 0 of the coordinator's: no bound
}

// Event is something that happened to a plan.
type Event struct {
	When time.Time `json:"when"`
	What string    `json:"what"`
}

const (
	maxEvents     = 100
	maxEventBytes = 400
)

// Plan is a change of who hosts what, and how far it is. It is a document of
// the cluster's steering: whoever leads goes on with it.
type Plan struct {
	ID         string    `json:"id"`
	Kind       Kind      `json:"kind"`
	Why        string    `json:"why"`
	By         string    `json:"by"`
	Created    time.Time `json:"created"`
	Since      time.Time `json:"since"` // when it was begun, resumed, or told another end
	Ended      time.Time `json:"ended,omitzero"`
	Status     Status    `json:"status"`
	Held       Status    `json:"held,omitempty"` // what it was before it was paused
	Wanted     int       `json:"wanted"`         // replicas of each partition
	BaseWanted int       `json:"base_wanted"`
	Base       Layout    `json:"base"` // what there was before
	Moves      []Move    `json:"moves"`
	// Marks are those of before, of the nodes that it marked; not nil, but of
	// plans of older versions.
	Marks  map[millrace.NodeID]Mark `json:"marks"`
	Limits Limits                   `json:"limits"`
	Log    []Event                  `json:"log,omitempty"`
}

// note adds to what happened.
func (p *Plan) note(now time.Time, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	p.Log = append(p.Log, Event{now.UTC().Truncate(time.Millisecond), what[:min(len(what), maxEventBytes)]})
	p.Log = p.Log[max(0, len(p.Log)-maxEvents):]
}

// goal returns what the plan makes of an assignment.
func (p *Plan) goal(a *topology.Assignment) Layout {
	goal := Layout(a.Replicas)
	goal = goal.clone()
	for _, m := range p.Moves {
		if m.State == Moved {
			continue
		}
		if m.To != "" && !slices.Contains(goal[m.Partition], m.To) {
			goal[m.Partition] = append(goal[m.Partition], m.To)
		}
		if m.From != "" {
			goal[m.Partition] = slices.DeleteFunc(goal[m.Partition], func(id millrace.NodeID) bool { return id == m.From })
		}
	}
	return goal
}

// takers returns the nodes that the plan is yet to give replicas.
func (p *Plan) takers() map[millrace.NodeID]bool {
	if p == nil || p.Status.Ended() {
		return nil
	}
	ids := map[millrace.NodeID]bool{}
	for _, m := range p.Moves {
		if m.State != Moved && m.To != "" {
			ids[m.To] = true
		}
	}
	return ids
}

// The documents of a cluster's steering.
const (
	planDoc   = "plan"   // a Plan, the last one
	intentDoc = "intent" // an Intent
	notesDoc  = "notes"  // Notes
)

// Mark is what people say of a node.
type Mark struct {
	Draining bool      `json:"draining,omitempty"` // it is to host nothing
	Added    bool      `json:"added,omitempty"`    // it may be given replicas though it has none
	Lost     bool      `json:"lost,omitempty"`     // it is gone for good, though many are
	By       string    `json:"by,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// Intent is what people want of the nodes.
type Intent struct {
	Nodes map[millrace.NodeID]Mark `json:"nodes,omitempty"`
}

// Alarm is something that a person has to see to.
type Alarm struct {
	What   string    `json:"what"` // a stable word
	Detail string    `json:"detail"`
	Since  time.Time `json:"since"`
}

// Notes is what the leading coordinator has seen.
type Notes struct {
	Leader string                        `json:"leader"`
	Gone   map[millrace.NodeID]time.Time `json:"gone,omitempty"` // nodes that host something, or are to, and are not there
	// GivenUp are those of Gone that are not waited for any more: their replicas are made
	// elsewhere, where there is another place for them.
	GivenUp []millrace.NodeID `json:"given_up,omitempty"`
	Alarms  []Alarm           `json:"alarms,omitempty"`
}

// Steered is a cluster's steering, its documents read.
type Steered struct {
	*steering.State
	Plan   *Plan // the last one; nil: there was none
	Intent Intent
	Notes  Notes
	unread error // of notes that are none
}

// read reads the documents of a steering. What is malformed is refused: to
// forget a plan that is under way would leave what it moves in between. Notes are
// only told: the coordinator that leads writes them anew, and says so.
func read(s *steering.State) (*Steered, error) {
	out := &Steered{State: s}
	for name, into := range map[string]any{planDoc: &out.Plan, intentDoc: &out.Intent, notesDoc: &out.Notes} {
		if body := s.Documents[name]; body != "" {
			if err := unpack(body, into); err != nil && name == notesDoc {
				out.Notes, out.unread = Notes{}, err
			} else if err != nil {
				return nil, malformed(name, err)
			}
		}
	}
	if out.Plan != nil {
		if err := out.Plan.validate(); err != nil {
			return nil, malformed(planDoc, err)
		}
	}
	if out.Intent.Nodes == nil {
		out.Intent.Nodes = map[millrace.NodeID]Mark{}
	}
	return out, nil
}

// malformed says that a document in etcd is none. Nothing is done by it or about it.
func malformed(name string, err error) error {
	lost := "a plan that is lost can be made anew"
	if name == intentDoc {
		lost = "without it nobody knows which nodes were drained, added or given up: say it again (millrace node drain, add, remove)"
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = fmt.Errorf("%s is a %s", cmp.Or(kind.Field, "it"), kind.Value)
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: name, Detail: fmt.Sprintf("what etcd has as steer/%s is none: %v", name, err),
		WayOut: "bring back what it was, or remove the key with etcdctl; " + lost,
	}
}

// validate refuses what no coordinator has written: what was damaged, or written by hand.
// All that is done about a plan believes that it holds.
func (p *Plan) validate() error {
	statuses := []Status{Running, Cancelling, RollingBack, Paused, Done, Cancelled, RolledBack}
	switch {
	case keyspace.ValidID(p.ID) != nil:
		return fmt.Errorf("id: %w", keyspace.ValidID(p.ID))
	case !slices.Contains(statuses, p.Status):
		return fmt.Errorf("status %.40q is not one of %q", p.Status, statuses)
	case p.Status == Paused && !slices.Contains(statuses[:3], p.Held):
		return fmt.Errorf("held %.40q, of one that is paused, is not one of %q", p.Held, statuses[:3])
	case p.Wanted < 1 || p.Wanted > topology.MaxOwners || p.BaseWanted < 1 || p.BaseWanted > topology.MaxOwners:
		return fmt.Errorf("wanted %d and base_wanted %d are not both 1 to %d", p.Wanted, p.BaseWanted, topology.MaxOwners)
	case p.Limits.PerNode < 0 || p.Limits.PerSecond < 0 || p.Limits.BytesPerSecond < 0:
		return fmt.Errorf("limits per_node %d, per_second %d and bytes_per_second %d are not all 0 or more", p.Limits.PerNode, p.Limits.PerSecond, p.Limits.BytesPerSecond)
	case !slices.ContainsFunc(p.Base[:], func(owners []millrace.NodeID) bool { return len(owners) > 0 }):
		return errors.New("base says of no partition who hosted it before")
	}
	for q, owners := range p.Base {
		if len(owners) > topology.MaxOwners {
			return fmt.Errorf("base has %d nodes of partition %d, more than %d", len(owners), q, topology.MaxOwners)
		}
		for _, id := range owners {
			if err := keyspace.ValidID(string(id)); err != nil {
				return fmt.Errorf("base, of partition %d: %w", q, err)
			}
		}
	}
	for i, m := range p.Moves {
		switch {
		case m.Partition >= partition.Count:
			return fmt.Errorf("move %d is of partition %d, and there are %d", i, m.Partition, partition.Count)
		case m.State != Waiting && m.State != Building && m.State != Moved:
			return fmt.Errorf("move %d is %.40q, which is not one of %q", i, m.State, []MoveState{Waiting, Building, Moved})
		case m.From == m.To:
			return fmt.Errorf("move %d is from %.80q to the same node", i, m.From)
		case m.Bytes < 0:
			return fmt.Errorf("move %d is of %d bytes", i, m.Bytes)
		}
		for _, id := range []millrace.NodeID{m.From, m.To} {
			if err := keyspace.ValidID(string(id)); id != "" && err != nil {
				return fmt.Errorf("move %d: %w", i, err)
			}
		}
	}
	return nil
}

// write puts the documents back.
func (s *Steered) write() error {
	for name, doc := range map[string]any{planDoc: s.Plan, intentDoc: s.Intent, notesDoc: s.Notes} {
		if name == planDoc && s.Plan == nil {
			continue
		}
		body, err := pack(doc)
		if err != nil {
			return err
		}
		if _, had := s.Documents[name]; !had && body == "{}" {
			continue
		}
		s.Documents[name] = body
	}
	return nil
}

// packedFrom is the size in bytes from which a document is compressed: a plan of 720
// partitions and 15 replicas that is rolled back has 20,000 moves, of 110 bytes each
// in the end, where a document may have a megabyte. Moves are alike: of them, a tenth is left.
const packedFrom = keyspace.MaxDocumentBytes / 2

// pack returns a document as etcd has it: JSON, compressed by gzip if it is long.
func pack(doc any) (string, error) {
	body, err := json.Marshal(doc)
	if err != nil || len(body) < packedFrom {
		return string(body), err
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err = z.Write(body)
	err = errors.Join(err, z.Close())
	return out.String(), err
}

// A document is no longer than this once it is unpacked, and no more is in it: what is
// small in etcd may else take all memory of whoever reads it.
const (
	maxUnpacked = 16 << 20
	maxParts    = 1 << 18 // commas and brackets
)

// unpack reads what pack returned.
func unpack(body string, into any) error {
	var from io.Reader = strings.NewReader(body)
	if strings.HasPrefix(body, "\x1f\x8b") {
		z, err := gzip.NewReader(from)
		if err != nil {
			return err
		}
		from = z
	}
	text, err := io.ReadAll(io.LimitReader(from, maxUnpacked+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxUnpacked:
		return fmt.Errorf("it is longer than %d bytes once it is unpacked", maxUnpacked)
	}
	parts := bytes.Count(text, []byte{','}) + bytes.Count(text, []byte{'{'}) + bytes.Count(text, []byte{'['})
	if parts > maxParts {
		return fmt.Errorf("it has %d parts, more than %d", parts, maxParts)
	}
	return json.Unmarshal(text, into)
}
