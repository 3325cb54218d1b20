// Package simulation has a whole cluster live through random faults in virtual
// time, many lives a minute, and judges it by the log. It has tests only; `make
// simulate` runs them for longer than `make test` does.
//
// A life, called a history, is one bubble of testing/synctest. In it are the
// real partitioners, index nodes and broker; kfake; an etcd that speaks etcd's
// protocol; for each node a disk in memory that loses in a crash what was not
// synced; and a network that they all are reached by, which delays each write,
// cuts one direction or both, and breaks connections. A process that crashes is
// cut off first and told to end then, so that nothing which it still does
// counts. The seed draws everything before the life begins: what producers send
// and when, what breaks and for how long, what is asked.
//
// After 20 s, or some more, everything is mended. Then the broker, and each node by itself,
// must answer what all inputs amount to. At the end all that was said on the
// way is judged by what one reader of committed records found in the log:
//
//   - lost, doubled, order: an input is in each of its timelines once, in its
//     producer's order;
//   - letters: what cannot be taken is a dead letter, and nothing else is;
//   - wrong: an answer is the fold of the log at its receipt;
//   - stale: one that is not flagged has all that was acknowledged ten seconds
//     before;
//   - unserved, favoured: where one node alone is broken, the others answer for
//     it, and are asked in its place once the broker has noticed;
//   - unsettled: what is mended gets whole.
//
// # What a seed decides
//
// A seed gives the same schedule, the same delays on each connection and the
// same losses of each disk. It does not decide in which order goroutines run
// that are ready at the same virtual time, which case of a select with several
// is taken, the order of maps, or what math/rand/v2 gives where the roles ask
// for a random number. So a history is repeated nearly, and a seed that found
// something finds it again most of the time: DURATION=20x tells how often.
//
// The build tag synctests lets franz-go wait for its mutexes in a way that
// virtual time may pass by; it holds some while it talks to Kafka. Whoever waits
// for one of sync's stops the clock, and the test says after some minutes where.
package simulation
