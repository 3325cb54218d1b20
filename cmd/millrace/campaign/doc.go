// Package campaign breaks a cluster of processes on a real Kafka and a real
// etcd, and holds every answer that it gives meanwhile against the log. It has
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
//   - wrong: an answer differs from the fold of the log at the offsets of its
//     receipt;
//   - stale: an answer that is not flagged lacks an input that was acknowledged
//     more than ten seconds before the question;
//   - lost: an acknowledged input never came to the log, or is not in an answer
//     at the end;
//   - doubled: an input stands in the log twice;
//   - ended: a process ended that the campaign did not kill;
//   - unhealed: the cluster is not whole within a generous bound;
//   - differing: two replicas of a partition with equal offsets have different digests;
//   - fewer: a partition has fewer ready replicas than before a plan of moves.
//
// These are the promises P5, P7, P8, P9, P17, P18 and P21 of RELIABILITY; the
// models' test is P19. What cannot be undone, such as a topic that is created
// again, has tests and clusters of its own.
package campaign
