package leans

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/relevance"
)

// Feeds is a cluster's definitions of feeds, and access to what they are checked against.
type Feeds struct {
	Cluster  *cluster.Client
	Versions *artefacts.Kind // of the feeds' definitions
}

// Models returns the names of the models that serve: the built-in ones, then the pushed ones.
func (s *Feeds) Models(ctx context.Context) ([]string, error) {
	pushed, err := artefacts.Watch(ctx, s.Cluster, indexnode.ModelsKind)
	if err != nil {
		return nil, err
	}
	return append(relevance.Builtin().Names(), slices.Sorted(maps.Keys(pushed.Serving()))...), nil
}

// Checks returns what definitions are checked against: models, and connections to the index
// nodes that are alive. Done closes the connections; it is never nil.
func (s *Feeds) Checks(ctx context.Context) (c feeds.Checks, done func(), err error) {
	done = func() {}
	if c.Models, err = s.Models(ctx); err != nil {
		return c, done, err
	}
	maps, err := s.Cluster.Watch(ctx)
	if err != nil {
		return c, done, err
	}
	credentials, err := reach.Of(ctx).Dial()
	if err != nil {
		return c, done, err
	}
	dial, m := fanout.DialGRPC(credentials), maps.Current()
	assigned := m.Assignment()
	c.Absent = slices.ContainsFunc(assigned.Nodes(), func(id millrace.NodeID) bool { return !m.Alive(id) })
	c.Nodes = map[millrace.NodeID]fanout.Node{}
	done = func() {
		for _, n := range c.Nodes {
			if conn, ok := n.(io.Closer); ok {
				_ = conn.Close() // the command is over
			}
		}
	}
	for _, n := range m.Nodes() {
		if !m.Alive(n.ID) {
			continue
		}
		node, err := dial(n)
		if err != nil {
			done()
			return c, func() {}, err
		}
		c.Nodes[n.ID] = node
	}
	return c, done, nil
}

// Unseen says that no record has these types, and which types records have: known, a list
// as text. It is "" if types is empty.
func Unseen(types []string, known string) string {
	if len(types) == 0 {
		return ""
	}
	return fmt.Sprintf("no record has the type %s; there are %s", strings.Join(types, ", nor "), known)
}

// Judgement is what is wrong with a definition, for requests of its feed.
type Judgement struct {
	Fault    error // what is wrong with it; nil: nothing is known against it
	Unranked bool  // its own model does not serve, so that all its requests are refused
}

// Judge checks a definition against what it refers to.
func (d *Definition) Judge(ctx context.Context, checks feeds.Checks) (j Judgement) {
	if d.Fault != nil {
		return Judgement{Fault: d.Fault}
	}
	_, j.Fault = feeds.Check(ctx, d.Feed, checks)
	j.Unranked = !slices.Contains(checks.Models, d.Model)
	return j
}

// UnseenIn returns, for each list of types, what [Unseen] says of those that no record has.
func (s *Feeds) UnseenIn(ctx context.Context, lists [][]millrace.ContentType) (says []string, err error) {
	if len(slices.Concat(lists...)) == 0 {
		return make([]string, len(lists)), nil
	}
	checks, done, err := s.Checks(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return UnseenBy(ctx, checks, lists), nil
}

// UnseenBy is [Feeds.UnseenIn] for a caller that has checks already.
func UnseenBy(ctx context.Context, checks feeds.Checks, lists [][]millrace.ContentType) []string {
	says := make([]string, len(lists))
	none, known := checks.Unseen(ctx, slices.Concat(lists...))
	for i, list := range lists {
		says[i] = Unseen(slices.DeleteFunc(slices.Clone(none), func(t string) bool { return !slices.Contains(list, millrace.ContentType(t)) }), known)
	}
	return says
}

// Definition is a feed and where it is from.
type Definition struct {
	feeds.Feed
	Edition string // its version; "": it is built in
	Covers  bool   // it is in place of the built-in one
	Text    []byte // YAML
	Fault   error  // why it cannot be read, so that brokers don't take it over
}

// Definitions returns the feeds that brokers are told to serve, by name: the built-in ones,
// and the cluster's, which replace built-in ones of the same name.
func (s *Feeds) Definitions(ctx context.Context) (map[string]Definition, error) {
	all := map[string]Definition{}
	for _, f := range feeds.BuiltIn() {
		text, err := document.Encode(f)
		if err != nil {
			return nil, err
		}
		all[f.Name] = Definition{Feed: f, Text: text}
	}
	for name, v := range s.Versions.Serving() {
		d, err := s.Read(ctx, v)
		if err != nil {
			return nil, err
		}
		_, d.Covers = all[name]
		all[name] = d
	}
	return all, nil
}

// Read reads a version of a feed. A version that cannot be read has a Fault, and no error is
// returned. The error says that etcd is away, so that it is not known whether the version
// can be read.
func (s *Feeds) Read(ctx context.Context, v artefacts.Version) (d Definition, err error) {
	d.Edition = v.Version
	if d.Text, err = s.Versions.Body(ctx, v); errors.Is(err, cluster.ErrAway) {
		return d, err
	}
	if err == nil {
		d.Feed, err = feeds.Parse(d.Text)
	}
	d.Fault = s.unreadable(v, err)
	return d, nil
}

// unreadable returns why a version cannot be read, with what to do about it, as all commands
// tell it; nil if why is nil.
func (s *Feeds) unreadable(v artefacts.Version, why error) error {
	if why == nil {
		return nil
	}
	what, way := "version "+v.Version+" of feed "+v.Name, "define it again if it is needed"
	if serving, _ := s.Versions.Served(v.Name); serving == v {
		what, way = "feed "+v.Name, fmt.Sprintf("put feed %s in place anew with millrace feed define, or go back with millrace feed rollback %s --apply", v.Name, v.Name)
	}
	detail := why.Error()
	if errors.Is(why, artefacts.ErrNoBytes) {
		detail, way = detailOf(why), artefacts.BytesWayOut+"; else "+way
	}
	return command.Refused(&millrace.Error{Reason: millrace.ReasonUnavailable, Detail: what + " cannot be read: " + detail, WayOut: way}, why)
}

// detailOf returns the text of an error without the advice of a [millrace.Error].
func detailOf(err error) string {
	if e := (*millrace.Error)(nil); errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}

// Find returns a definition. args is a feed's name, for the definition that serves, or a name
// and a version.
func (s *Feeds) Find(ctx context.Context, args []string) (Definition, error) {
	if len(args) == 2 {
		for _, v := range s.Versions.All()[args[0]] {
			if v.Version == args[1] {
				return s.Read(ctx, v)
			}
		}
		return Definition{}, fmt.Errorf("feed %q has no version %q; see millrace feed history", args[0], args[1])
	}
	all, err := s.Definitions(ctx)
	if err != nil {
		return Definition{}, err
	}
	f, ok := all[args[0]]
	if !ok {
		return Definition{}, fmt.Errorf("no feed %q; see millrace feed list", args[0])
	}
	return f, nil
}
