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

// UnmarshalJSON implements [json.Unmarshaler]. It refuses a layout that does not have every
// partition: a partition that is left out would count as one that nobody hosts.
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
	Rebalance Kind = "rebalance" // spread partitions evenly, as after loads changed
	Add       Kind = "add"       // give new nodes their share
	Drain     Kind = "drain"     // have nodes host nothing
	Replace   Kind = "replace"   // have one node take over all that another hosts
	Resize    Kind = "resize"    // change the number of replicas
	Repair    Kind = "repair"    // make anew what nodes hosted that are gone for good
)

// Status is where a plan is.
type Status string

// The statuses of plans. A plan begins as running, and ends as done, cancelled or rolled
// back.
const (
	Running     Status = "running"
	Paused      Status = "paused"       // no move is begun or ended; nodes go on with what they build
	Cancelling  Status = "cancelling"   // moves under way end or are taken back; see Plan.cancelled
	RollingBack Status = "rolling_back" // it leads back to what there was before
	Done        Status = "done"
	Cancelled   Status = "cancelled"
	RolledBack  Status = "rolled_back"
)

// Ended reports whether s is a status in which a plan ends.
func (s Status) Ended() bool { return s == Done || s == Cancelled || s == RolledBack }

// words returns the status as words of a sentence.
func (s Status) words() string { return strings.ReplaceAll(string(s), "_", " ") }

// MoveState is how far a move is. While it is Building, the node of the new replica reports
// the finer states: restoring, catching up, warming.
type MoveState string

// The states of a move.
const (
	Waiting  MoveState = "waiting"
	Building MoveState = "building" // the new replica is assigned, and not ready yet
	Moved    MoveState = "done"     // the new replica is ready, and the old one is no longer assigned
)

// Move moves a replica of a partition from one node to another. Without From it adds a
// replica, without To it removes one.
type Move struct {
	Partition millrace.Partition `json:"p"`
	From      millrace.NodeID    `json:"from,omitempty"`
	To        millrace.NodeID    `json:"to,omitempty"`
	Lost      bool               `json:"lost,omitempty"` // it was planned because From was given up
	State     MoveState          `json:"state"`
	Since     time.Time          `json:"since,omitzero"`  // when the state began
	Bytes     int64              `json:"bytes,omitempty"` // the size of the replica when the move was planned
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

// Limits bound how fast the moves of a plan go. Where a limit of a plan is 0, the
// coordinator's holds; where that is 0 too, there is none.
type Limits struct {
	PerNode        int   `json:"per_node,omitempty"`         // moves to a node at a time
	PerSecond      int   `json:"per_second,omitempty"`       // moves begun a second in the whole cluster; the coordinator's does not hold for moves that replace lost replicas
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"` // bytes of moves begun a second
}

// Event is something that happened to a plan.
type Event struct {
	When time.Time `json:"when"`
	What string    `json:"what"`
}

const (
	maxEvents     = 100 // in the log of a plan
	maxEventBytes = 400 // of an event's text
)

// Plan is a change of which nodes host which partitions, and how far it is. It is a document
// of the cluster's steering in etcd, with which any leading coordinator goes on.
type Plan struct {
	ID         string    `json:"id"`
	Kind       Kind      `json:"kind"`
	Why        string    `json:"why"` // for people
	By         string    `json:"by"`  // who wanted it: a person or a coordinator
	Created    time.Time `json:"created"`
	Since      time.Time `json:"since"`          // when it was begun, resumed, cancelled or rolled back
	Ended      time.Time `json:"ended,omitzero"` // zero: it has not ended
	Status     Status    `json:"status"`
	Held       Status    `json:"held,omitempty"` // its status before it was paused
	Wanted     int       `json:"wanted"`         // replicas of each partition
	BaseWanted int       `json:"base_wanted"`    // replicas that were wanted before the plan
	Base       Layout    `json:"base"`           // who hosted what before the plan
	Moves      []Move    `json:"moves"`
	// Marks are the former marks of the nodes that the plan marked. nil only in a plan
	// that an older version of Millrace wrote.
	Marks  map[millrace.NodeID]Mark `json:"marks"`
	Limits Limits                   `json:"limits"`
	Log    []Event                  `json:"log,omitempty"`
}

// note adds an event to the plan's log, which keeps the newest maxEvents.
func (p *Plan) note(now time.Time, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	p.Log = append(p.Log, Event{now.UTC().Truncate(time.Millisecond), what[:min(len(what), maxEventBytes)]})
	p.Log = p.Log[max(0, len(p.Log)-maxEvents):]
}

// goal returns the layout to which the plan's moves that are not done lead from an
// assignment.
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

// takers returns the nodes to which the plan still has to give replicas.
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
	Lost     bool      `json:"lost,omitempty"`     // it is gone for good: it is given up without waiting
	By       string    `json:"by,omitempty"`       // who made the last mark
	Since    time.Time `json:"since,omitzero"`     // when that was
}

// Intent is what people want of the nodes. Its map is not nil after read.
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
	Gone   map[millrace.NodeID]time.Time `json:"gone,omitempty"` // nodes that host something, or are to, and are not alive; since when
	// GivenUp are those of Gone that are not waited for any more. Their replicas are made
	// elsewhere, if another node may take them.
	GivenUp []millrace.NodeID `json:"given_up,omitempty"`
	Alarms  []Alarm           `json:"alarms,omitempty"`
}

// Steered is the state by which a cluster is steered, with its documents parsed: the
// assignment and the cluster map, the plan, what people want, and what the leader has seen.
type Steered struct {
	*steering.State
	Plan   *Plan // the last one; nil: there was none
	Intent Intent
	Notes  Notes
	unread error // why the notes could not be parsed; nil: they could
}

// read parses the documents of a steering state. A malformed plan or intent is an error: to
// ignore a plan that is under way would leave its moves unfinished. Malformed notes are
// only reported in unread, since the leading coordinator writes them anew.
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

// malformed returns the error for a document in etcd that cannot be read. Until a person
// mends it, no coordinator steers.
func malformed(name string, err error) error {
	lost := "a plan that is lost can be made anew"
	if name == intentDoc {
		lost = "without it nobody knows which nodes were drained, added or given up: say it again (millrace node drain, add, remove)"
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = fmt.Errorf("%s is a %s", cmp.Or(kind.Field, "it"), kind.Value)
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: name, Detail: fmt.Sprintf("the document steer/%s in etcd cannot be read: %v", name, err),
		WayOut: "bring back what it was, or remove the key with etcdctl; " + lost,
	}
}

// validate refuses a plan that no coordinator can have written: one that was damaged, or
// written by hand. All other methods rely on what it checks.
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

// write puts the documents back into the state, which the caller then writes to etcd.
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

// packedFrom is the size in bytes from which a document is compressed. A plan of 720
// partitions and 15 replicas that is rolled back has 20,000 moves of 110 bytes, and a
// document may have a megabyte. Moves resemble each other, and compress to a tenth.
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

// A document that is larger than this after unpacking is refused: one that is small in etcd
// could otherwise take all the memory of its reader.
const (
	maxUnpacked = 16 << 20 // bytes
	maxParts    = 1 << 18  // commas and opening brackets
)

// unpack parses a document that pack returned into the value that into points to.
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
