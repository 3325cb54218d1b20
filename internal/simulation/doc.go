// Package simulation runs a whole cluster through random faults in virtual time, and
// judges it by the log. One such run is called a history; many take a minute. The package
// has only tests; `make simulate` runs them for longer than `make test` does.
//
// A history is one bubble of testing/synctest. In it are the real partitioners, index
// nodes and broker; kfake, a Kafka for tests; and an etcd that speaks etcd's protocol.
// Each node has a disk in memory, which loses in a crash what was not synced. A network
// connects them all: it delays each write, cuts one direction or both, and breaks
// connections. A process that crashes is first cut off and then told to end, so that
// nothing counts that it still does. The seed decides everything before the history
// begins: what producers send and when, what breaks and for how long, and what is asked.
//
// After 20 s or some more everything is mended. Then the broker, and each node by itself,
// must answer what all inputs amount to. At the end everything that was said on the way
// is judged by what one reader of committed records found in the log. The names of what
// is judged are:
//
//   - lost, doubled, order: an input is in each of its timelines once, in its
//     producer's order;
//   - letters: what cannot be taken is a dead letter, and nothing else is;
//   - wrong: an answer is what the log, applied up to the offsets of its receipt,
//     amounts to;
//   - stale: an answer that is not flagged as behind has everything that was
//     acknowledged ten seconds before;
//   - unserved, favoured: if only one node is broken, the others answer for it, and
//     are asked in its place once the broker has noticed;
//   - unsettled: once everything is mended, the cluster gets whole.
//
// # What a seed decides
//
// A seed gives the same schedule, the same delays on each connection and the same losses
// of each disk. It does not decide which of several goroutines runs first that are ready
// at the same virtual time, which of several ready cases a select takes, the order of
// maps, or what random numbers the roles get from math/rand/v2. So a seed repeats a
// history only nearly. A seed that found something finds it again most of the time:
// `make simulate` with SEED and DURATION=20x runs it 20 times, and so tells how often.
//
// With the build tag synctests franz-go waits for its mutexes in a way that lets virtual
// time pass; it holds some while it talks to Kafka. A goroutine that waits for a mutex of
// package sync stops the virtual clock; after some minutes the test says where.
package simulation
