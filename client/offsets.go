package client

import (
	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/offsets"
)

// Offsets are those of a partition from which on an answer includes nothing, in
// the topics timeline and features.
type Offsets = offsets.Next

// OffsetsOf returns what an answer includes of each partition, whether its
// receipt is compact or full.
func OffsetsOf(r *feedv1.Receipt) (map[millrace.Partition]Offsets, error) { return offsets.Read(r) }
