package topology

import (
	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Node is an index node as others reach it.
type Node struct {
	ID   millrace.NodeID `json:"id"`
	Addr string          `json:"addr"` // host:port of its gRPC
	Zone string          `json:"zone,omitempty"`
	// Weight is the share of all replicas that it is to host, relative to the
	// other nodes: [MinWeight] to [MaxWeight]. 0 is 1.
	Weight float64 `json:"weight,omitempty"`
	// Instance is a random word that the node's data directory keeps, see
	// [datadir.CheckDir]: by it a process that is restarted is told from a second one
	// of the same id. Empty: one of this process alone.
	Instance string `json:"instance,omitempty"`
	// Keeps are the partitions that a backup node reads and backs up, as
	// [ParseSet] has them. Such a node answers nobody, and the assignment does
	// not name it. Empty: a node that serves.
	Keeps string `json:"keeps,omitempty"`
	// Place is where that directory is, and Start how often a process has
	// registered from it: by both a copy of it is told.
	Place string `json:"place,omitempty"`
	Start int64  `json:"start,omitempty"`
	// Dir, if given, says all three when the node joins.
	Dir datadir.Instance `json:"-"`
}

// The bounds of [Node.Weight].
const (
	MinWeight = 0.01
	MaxWeight = 100
)

// ValidWeight reports whether a node may have a weight.
func ValidWeight(w float64) bool { return w == 0 || w >= MinWeight && w <= MaxWeight }

// CheckID refuses what cannot be the id of a node.
func CheckID(id millrace.NodeID) error {
	if err := keyspace.ValidID(string(id)); err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "id", Detail: err.Error(), WayOut: "give the node another id"}
	}
	return nil
}
