package members

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/line"
)

// Admission says whether a node admits one version of a model, and what it knows of it.
type Admission struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Sum     string `json:"sum"`
	Refused string `json:"refused,omitempty"` // why the node refuses it; "": the node admits it
	Deadly  bool   `json:"deadly,omitempty"`  // it is refused because the node crashed on it, until an operator releases it
	Unkept  string `json:"unkept,omitempty"`  // why the node will lack it after a restart while etcd is away; "": it will not
	Cost    int    `json:"cost,omitempty"`    // what scoring a record takes, in operations; 0: not told
	// Lacks says for each content type that the node has met which fields its records
	// lack. It has the types that lack none, too.
	Lacks []Lack `json:"lacks,omitempty"`
}

// Lack names the fields that a model reads, and that are empty in all records of a content
// type that a node looked at.
type Lack struct {
	Type    string   `json:"type"`
	Records int      `json:"records"` // how many records were looked at
	Fields  []string `json:"fields,omitempty"`
}

// Of reports whether the admission is of a version.
func (a Admission) Of(v artefacts.Version) bool {
	return a.Name == v.Name && a.Version == v.Version && a.Sum == v.Sum
}

const (
	admittedPrefix   = cluster.MapPrefix + "models/"
	maxAdmittedBytes = 64 << 10 // of all admissions of a node, encoded
	maxRefusedBytes  = 500      // of one reason: Refused or Unkept
)

// encodeAdmitted encodes admissions in at most maxAdmittedBytes. It cuts every reason to
// maxRefusedBytes. If the admissions are still too long, it first leaves out what records
// lack, then cuts the longest reasons further, and then leaves out the last admissions.
func encodeAdmitted(all []Admission) string {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Admission) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Sum, b.Sum))
	})
	for limit := maxRefusedBytes; ; limit /= 2 {
		for i := range all {
			if len(all[i].Unkept) > limit {
				all[i].Unkept = strings.ToValidUTF8(all[i].Unkept[:limit], "") + " ..."
			}
			if len(all[i].Refused) > limit {
				all[i].Refused = strings.ToValidUTF8(all[i].Refused[:limit], "") + " ..."
			}
		}
		body, err := json.Marshal(all)
		if err != nil {
			panic(fmt.Sprintf("cluster: admissions: %v", err)) // JSON can encode all that an Admission has
		}
		if len(body) <= maxAdmittedBytes {
			return string(body)
		}
		if slices.ContainsFunc(all, func(a Admission) bool { return a.Lacks != nil }) {
			for i := range all {
				all[i].Lacks = nil
			}
			limit = 2 * maxRefusedBytes
			continue
		}
		if limit < 16 {
			all, limit = all[:len(all)*3/4], maxRefusedBytes
		}
	}
}

func decodeAdmitted(b []byte) ([]Admission, error) {
	if len(b) > maxAdmittedBytes {
		return nil, fmt.Errorf("%d bytes of models, more than %d", len(b), maxAdmittedBytes)
	}
	var all []Admission
	err := json.Unmarshal(b, &all)
	for i, a := range all {
		all[i].Unkept = line.Of(a.Unkept)
		all[i].Refused = line.Keep(strings.ToValidUTF8(a.Refused, "\ufffd"), "\n") // a fault of a spec has several lines
	}
	return all, err
}

// SetModels notes which versions of models the node admits. They are told as those of
// [Membership.SetAnswering] are.
func (m *Membership) SetModels(all []Admission) { m.say("models", encodeAdmitted(all)) }

// Admitted watches which versions of models the nodes admit.
type Admitted struct {
	state *keyspace.Latest[map[millrace.NodeID][]Admission]
}

// WatchAdmitted watches which versions of models the nodes admit. It returns once that
// has been read from etcd, and works until ctx or the client ends.
func WatchAdmitted(ctx context.Context, c *cluster.Client) (*Admitted, error) {
	a := &Admitted{keyspace.NewLatest(map[millrace.NodeID][]Admission{})}
	first, known := make(chan struct{}), sync.Once{}
	c.Run(func() {
		c.Follow(ctx, admittedPrefix, func(s *keyspace.Snapshot, err error) {
			old, _ := a.state.Get()
			if err != nil {
				a.state.Set(old, err)
				return
			}
			next := map[millrace.NodeID][]Admission{}
			var faults []error
			for _, id := range slices.Sorted(maps.Keys(s.Values)) {
				all, err := decodeAdmitted(s.Values[id].Data)
				if err != nil {
					faults = append(faults, fmt.Errorf("cluster: models of %s: %w", id, err))
				}
				next[millrace.NodeID(id)] = all
			}
			a.state.Set(next, keyspace.Few(faults))
			known.Do(func() { close(first) })
		})
	})
	if err := c.AwaitFirst(ctx, "admitted models", first); err != nil {
		return nil, err
	}
	return a, nil
}

// Current returns the admissions of each living node, for the models that it has heard
// of. The caller must not change it.
func (a *Admitted) Current() map[millrace.NodeID][]Admission { v, _ := a.state.Get(); return v }

// Changed returns a channel that is closed at the next change, as
// [cluster.Watcher.Changed].
func (a *Admitted) Changed() <-chan struct{} { return a.state.Changed() }

// Fault returns what keeps Current from being up to date and whole, as
// [cluster.Watcher.Fault]; nil: nothing.
func (a *Admitted) Fault() error { _, err := a.state.Get(); return err }
