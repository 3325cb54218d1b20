// Package coordinator changes which nodes host which partitions while they are served. It
// carries out plans of moves, makes replicas of lost nodes anew elsewhere, compares
// replicas, and ramps and pauses experiments.
//
// The assignment says which nodes host each partition. A plan is a list of moves of
// replicas, and a goal; a move adds the new replica to the assignment, and removes the old
// one when the new one is ready.
//
// An experiment gives viewers variants of a feed. Its ramp raises, step by step, the share
// of viewers that take part; its guards pause it when a variant does harm. The evidence is
// exposures (a log of what answers showed) and outcomes (a log of what viewers then did).
//
// Two or more coordinators run, and one leads. A plan is a document in etcd. What is done
// about it follows from the plan, the assignment and what nodes report, so that a new
// leader goes on where another stopped. etcd accepts a write of a leader only while it
// leads. See DESIGN.md.
package coordinator
