// Package campaign breaks a cluster of processes on a real Kafka and a real
// etcd, and compares every answer that the cluster gives meanwhile with the log. It has
// tests only; `make faults` runs them.
//
// The cluster is two partitioners, three index nodes with two replicas of each
// partition, and two brokers. Each is a process of the real binary under a user id of
// its own, so that the packet filter can cut one of them off from one neighbour. A
// separate process sends records, features and questions all the time, so that judging
// the answers does not slow them. A schedule, drawn from a seed, says what breaks and for
// how long. After each round the campaign heals everything, waits until the cluster is
// whole, and judges what was answered:
//
//   - wrong: an answer differs from what the records of the log give, up to the offsets
//     that the answer's receipt names;
//   - stale: an answer that does not say that it may be old lacks an input that was
//     acknowledged more than ten seconds before the question;
//   - lost: an acknowledged input never came to the log, or is not in an answer
//     at the end;
//   - doubled: an input is in the log twice;
//   - ended: a process ended that the campaign did not kill;
//   - unhealed: the cluster is not whole within a generous bound;
//   - differing: two replicas of a partition with equal offsets have different digests;
//   - fewer: a partition has fewer ready replicas than before a plan of moves.
//
// TestModelsUnderFaults pushes and rolls back versions of a model while index nodes restart,
// freeze and die, and judges that no answer mixes two versions. What cannot be undone, such
// as a topic that is created again, has tests and clusters of its own.
package campaign
