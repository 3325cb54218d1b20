package topology

import (
	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Node is an index node as it registers.
type Node struct {
	ID   millrace.NodeID `json:"id"`
	Addr string          `json:"addr"` // host:port of its gRPC
	Zone string          `json:"zone,omitempty"`
	// Weight is the share of all replicas that it is to host, relative to the
	// other nodes: [MinWeight] to [MaxWeight]. 0 is 1.
	Weight float64 `json:"weight,omitempty"`
	// Instance is a random word in the node's data directory, see [datadir.CheckDir]. It
	// distinguishes a restarted process from a second process with the same id. Empty: a
	// word that only this process has.
	Instance string `json:"instance,omitempty"`
	// Keeps is the partitions that a backup node reads and backs up, as
	// [ParseSet] reads them. Such a node answers no requests, and the assignment does
	// not name it. Empty: the node serves.
	Keeps string `json:"keeps,omitempty"`
	// Place is where the data directory is, and Start how often a process has registered
	// from it. Together they show whether a directory is a copy.
	Place string `json:"place,omitempty"`
	Start int64  `json:"start,omitempty"`
	// Dir, if given, sets Instance, Place and Start when the node joins.
	Dir datadir.Instance `json:"-"`
}

// The bounds of [Node.Weight].
const (
	MinWeight = 0.01
	MaxWeight = 100
)

// ValidWeight reports whether a node may have a weight.
func ValidWeight(w float64) bool { return w == 0 || w >= MinWeight && w <= MaxWeight }

// CheckID returns the refusal of an id that no node can have, else nil.
func CheckID(id millrace.NodeID) error {
	if err := keyspace.ValidID(string(id)); err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "id", Detail: err.Error(), WayOut: "give the node another id"}
	}
	return nil
}
