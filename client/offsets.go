package client

import (
	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/offsets"
)

// Offsets are the positions in the log that an answer is made from, for one partition: the
// first offset that the answer does not include, in the topic of timelines (Content) and in
// the topic of features (Features).
type Offsets = offsets.Next

// OffsetsOf returns the offsets of each partition that the receipt of an answer gives,
// whether the receipt is compact or full.
func OffsetsOf(r *feedv1.Receipt) (map[millrace.Partition]Offsets, error) { return offsets.Read(r) }
