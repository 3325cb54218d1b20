//go:build linux

package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// fault is one thing that breaks, and how it is mended. What the packet filter
// does is undone for all faults together.
type fault struct {
	what  string
	of    string             // what it breaks: two faults of a round break two things
	begin func(*world) error // [errUnbroken]: it found nothing to break, and does not count
	end   func(*world) error // nil: nothing to do
}

var errUnbroken = errors.New("there was nothing to break")

// broken is nil if something was.
func broken(something bool) error {
	if !something {
		return errUnbroken
	}
	return nil
}

// neighbour is 1 of what breaks something that roles stand on, else 0.
func (f fault) neighbour() int {
	if f.of == "kafka" || f.of == "etcd" {
		return 1
	}
	return 0
}

// round is what breaks together, and for how long.
type round struct {
	faults []fault
	hold   time.Duration
}

func (r round) String() string {
	var all []string
	for _, f := range r.faults {
		all = append(all, f.what)
	}
	return fmt.Sprintf("%s, %.1fs", strings.Join(all, " + "), r.hold.Seconds())
}

// schedule draws rounds from a seed, for ever.
type schedule struct{ r *rand.Rand }

func newSchedule(seed uint64) *schedule { return &schedule{rand.New(rand.NewPCG(seed, 1))} }

// short is a fixed list that has the kinds of faults that differ most; the seed
// says which processes they meet.
func (s *schedule) short() []round {
	r := s.r
	cut := func(name string) fault {
		return fault{name + " cut off from Kafka both ways", name,
			func(w *world) error { return w.packets.cut(w.process(name).uid, w.kafka.port, bothWays) }, nil}
	}
	node := victim(r, "node")
	return []round{
		{[]fault{cut(node), strange(r)}, 15 * time.Second},
		{[]fault{freeze("both partitioners frozen", "partitioner-1", "partitioner-2")}, 15 * time.Second},
		{[]fault{kafkaKilled(r), killed(r)}, 4 * time.Second},
		{[]fault{etcdWiped(r), cutFromBrokers(r)}, 8 * time.Second},
		{[]fault{schemaOnFullDisk(r), slowLink(r)}, 12 * time.Second},
		{[]fault{cutFromEtcd(r), freeze(node+" frozen", node)}, 14 * time.Second},
		{[]fault{lateSchema(r), diskLost(r)}, 13 * time.Second},
		{[]fault{everything(r)}, 3 * time.Second},
	}
}

// next draws a round: one to three faults, for a moment or for longer than any
// timeout of a session or a lease.
func (s *schedule) next() round {
	r := round{hold: 2*time.Second + time.Duration(s.r.Int64N(int64(4*time.Second)))}
	if s.r.IntN(5) > 1 {
		r.hold = 14*time.Second + time.Duration(s.r.Int64N(int64(7*time.Second)))
	}
	if s.r.IntN(25) == 0 {
		r.faults = []fault{everything(s.r)}
		return r
	}
	for range 1 + s.r.IntN(3) {
		f := kinds[s.r.IntN(len(kinds))](s.r)
		if !slices.ContainsFunc(r.faults, func(g fault) bool { return g.of == f.of }) {
			r.faults = append(r.faults, f)
		}
	}
	return r
}

// kinds make a fault each; those that stand for several are there as often.
var kinds = []func(*rand.Rand) fault{
	killed, killed, killed, diskLost, frozen, frozen, frozen,
	cutFromKafka, cutFromKafka, cutFromKafka, cutFromEtcd, cutFromEtcd, cutFromBrokers, cutFromBrokers,
	slowLink, slowLink, diskFull, diskFull, trimmed, strange, lateSchema, schemaOnFullDisk,
	kafkaKilled, kafkaFrozen, etcdKilled, etcdFrozen, etcdWiped,
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// victim draws a process: the roles as often as each other.
func victim(r *rand.Rand, roles ...string) string {
	role := pick(r, roles...)
	count := map[string]int{"partitioner": partitioners, "node": nodes, "broker": brokers}[role]
	return fmt.Sprintf("%s-%d", role, 1+r.IntN(count))
}

func (w *world) process(name string) *process {
	for _, p := range slices.Concat(w.partitioners, w.nodes, w.brokers) {
		if p.name == name {
			return p
		}
	}
	panic("no process " + name)
}

func killed(r *rand.Rand) fault {
	name := victim(r, "partitioner", "node", "broker")
	signal := pick(r, syscall.SIGKILL, syscall.SIGKILL, syscall.SIGTERM)
	return fault{fmt.Sprintf("%s: %v", name, signal), name,
		func(w *world) error { return broken(w.process(name).kill(signal)) },
		func(w *world) error { return w.process(name).start() }}
}

func frozen(r *rand.Rand) fault {
	if r.IntN(4) == 0 {
		return freeze("both partitioners frozen", "partitioner-1", "partitioner-2")
	}
	name := victim(r, "partitioner", "node", "broker")
	return freeze(name+" frozen", name)
}

func freeze(what string, names ...string) fault {
	signal := func(to syscall.Signal) func(*world) error {
		return func(w *world) error {
			ran := false
			for _, name := range names {
				ran = w.process(name).signal(to) || ran
			}
			return broken(ran)
		}
	}
	thaw := signal(syscall.SIGCONT)
	return fault{what, names[0], signal(syscall.SIGSTOP), func(w *world) error {
		_ = thaw(w) // what has ended needs none
		return nil
	}}
}

func cutFromKafka(r *rand.Rand) fault {
	name, d := victim(r, "partitioner", "node", "node"), pick(r, bothWays, bothWays, outwards, inwards)
	return fault{fmt.Sprintf("%s cut off from Kafka %v", name, d), name,
		func(w *world) error { return w.packets.cut(w.process(name).uid, w.kafka.port, d) }, nil}
}

func cutFromEtcd(r *rand.Rand) fault {
	name, d := victim(r, "broker", "node"), pick(r, bothWays, bothWays, outwards, inwards)
	return fault{fmt.Sprintf("%s cut off from etcd %v", name, d), name,
		func(w *world) error { return w.packets.cut(w.process(name).uid, w.etcdAt, d) }, nil}
}

func cutFromBrokers(r *rand.Rand) fault {
	i, d := r.IntN(nodes), pick(r, bothWays, bothWays, outwards, inwards)
	name := fmt.Sprintf("node-%d", i+1)
	return fault{fmt.Sprintf("%s cut off from brokers %v", name, d), name,
		func(w *world) error { return w.packets.hide(w.nodePort[i], d) }, nil}
}

func slowLink(r *rand.Rand) fault {
	to, i, delay := pick(r, "Kafka", "etcd", "node"), r.IntN(nodes), 50*time.Millisecond+time.Duration(r.Int64N(int64(time.Second)))
	name := victim(r, map[string][]string{"Kafka": {"partitioner", "node"}, "etcd": {"broker", "node"}, "node": {"broker"}}[to]...)
	if to == "node" {
		to = fmt.Sprintf("node-%d", i+1)
	}
	return fault{fmt.Sprintf("%s to %s slow by %v", name, to, delay.Round(time.Millisecond)), name,
		func(w *world) error {
			port := map[string]int{"Kafka": w.kafka.port, "etcd": w.etcdAt}[to]
			if port == 0 {
				port = w.nodePort[i]
			}
			w.proxies[port].delay.Store(int64(delay))
			return w.packets.divert(w.process(name).uid, port, w.proxies[port].port)
		}, nil}
}

// diskFull leaves a node no space, or less than it wants.
func diskFull(r *rand.Rand) fault {
	name, left := victim(r, "node"), pick(r, int64(0), 1<<20, 64<<20)
	ballast := func(w *world) string { return filepath.Join(w.dir, name, "ballast") }
	return fault{fmt.Sprintf("%s has %d MiB left", name, left>>20), name,
		func(w *world) error { return fill(ballast(w), left) },
		func(w *world) error { return os.Remove(ballast(w)) }}
}

// fill makes a file so large that its disk has so much left.
func fill(path string, left int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		var disk syscall.Statfs_t
		if err := syscall.Statfs(filepath.Dir(path), &disk); err != nil {
			return err
		}
		err := syscall.Fallocate(int(f.Fd()), 0, 0, max(4096, int64(disk.Bavail)*disk.Bsize-left))
		switch free := int64(disk.Bavail) * disk.Bsize; {
		case err == nil || !errors.Is(err, syscall.ENOSPC):
			return err
		case free <= left+4096:
			return nil
		} // or the node has written meanwhile
	}
}

// settled is how long ago the cluster was whole at offsets that every node has
// on its disk by now.
const settled = 2 * time.Minute

// trimmed deletes from both streams what every replica has had for long.
func trimmed(*rand.Rand) fault {
	return fault{"log trimmed", "log", func(w *world) error {
		var at *wholeness
		for i := range w.wholes {
			if time.Since(w.wholes[i].at) > settled {
				at = &w.wholes[i]
			}
		}
		if at == nil {
			return errUnbroken // the campaign is young
		}
		ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
		defer cancel()
		cut := false
		for stream, topic := range w.truth.topics {
			before := map[int32]int64{}
			for p, end := range at.ends[stream] {
				before[int32(p)] = end
			}
			if err := trim(ctx, w.adm, topic, before); err != nil {
				w.history.note("not trimmed", err.Error()) // another fault of the round keeps it from being
				continue
			}
			cut = true
		}
		return broken(cut)
	}, nil}
}

// produce sends a record past the load, as far as Kafka can be reached.
func (w *world) produce(r *kgo.Record) {
	w.cl.Produce(w.ctx, r, func(_ *kgo.Record, err error) {
		if err != nil && w.ctx.Err() == nil {
			w.history.note("not produced", err.Error())
		}
	})
}

// strange puts values that are no records into the inputs and into the streams
// themselves.
func strange(r *rand.Rand) fault {
	value := make([]byte, 1+r.IntN(2000))
	for i := range value {
		value[i] = byte(r.Uint32())
	}
	member := memberOf(r.IntN(members))
	return fault{"values that are no records", "values", func(w *world) error {
		for _, topic := range w.load.topic {
			w.produce(&kgo.Record{Topic: topic, Value: value})
		}
		for _, topic := range w.truth.topics {
			w.produce(outgoing(kafka.ToStream(topic, member, value, kafka.Source{Topic: "strange"})))
		}
		return nil
	}, nil}
}

func outgoing(o kafka.Outgoing) *kgo.Record {
	return &kgo.Record{Topic: o.Topic, Partition: o.Partition, Key: o.Key, Value: o.Value, Headers: o.Headers}
}

// lateSchema puts a record into the log whose schema comes when the fault ends.
func lateSchema(r *rand.Rand) fault {
	member := memberOf(r.IntN(members))
	var late *schemas.Schema
	return fault{"a record before its schema", "schema", func(w *world) (err error) {
		late, err = w.sendLate(member)
		return err
	}, func(w *world) error { return w.publish(late) }}
}

// schemaOnFullDisk publishes a schema while a node has no space to keep it, and
// lets records of it come then.
func schemaOnFullDisk(r *rand.Rand) fault {
	full := diskFull(r)
	begin, first := full.begin, r.IntN(members)
	full.what += ", when a schema comes"
	full.begin = func(w *world) error {
		if err := begin(w); err != nil {
			return err
		}
		member := first // the next one that the node hosts
		for !slices.Contains(w.owners[partition.Of(memberOf(member))], millrace.NodeID(full.of)) {
			member = (member + 1) % members
		}
		late, err := w.sendLate(memberOf(member))
		if err != nil {
			return err
		}
		w.produce(w.schemaRecord(late)) // Kafka may be away, by another fault
		return nil
	}
	return full
}

// sendLate puts a record of a new schema into the log.
func (w *world) sendLate(member millrace.Entity) (*schemas.Schema, error) {
	w.late++
	var text map[string]any
	if err := json.Unmarshal([]byte(schemas.Activity().JSON()), &text); err != nil {
		return nil, err
	}
	text["fields"] = append(text["fields"].([]any), map[string]any{"name": fmt.Sprintf("late_%d", w.late), "type": "long", "default": 0})
	avsc, err := json.Marshal(text)
	if err != nil {
		return nil, err
	}
	s, err := schemas.Parse(avsc)
	if err != nil {
		return nil, err
	}
	if _, err := w.truth.registry.Admit(s); err != nil {
		return nil, err
	}
	if err := w.asker.know(w.truth.registry.Snapshot().All()...); err != nil {
		return nil, err
	}
	line := fmt.Appendf(nil, `{"id":"late%d","actor":%q,"verb":"post","created_at":%d,"late_%d":1}`, w.late, member, millrace.TimeOf(time.Now()), w.late)
	body, env, err := encode(s, line)
	if err != nil {
		return nil, err
	}
	w.asker.watch(member)
	acked := w.truth.send(content, env)
	w.cl.Produce(w.ctx, outgoing(kafka.ToStream(w.truth.topics[content], env.Entity, schemas.Frame(s.Fingerprint(), body), kafka.Source{Topic: "late", Offset: millrace.Offset(w.late)})), func(_ *kgo.Record, err error) {
		if err == nil {
			acked()
		}
	})
	w.history.note("late", fmt.Sprintf("partition %d waits for schema %s", partition.Of(env.Entity), s.Fingerprint()))
	return s, nil
}

func kafkaKilled(*rand.Rand) fault {
	return fault{"Kafka killed", "kafka",
		func(w *world) error { return broken(w.kafka.signal(syscall.SIGKILL)) },
		func(w *world) error { return w.kafka.start() }}
}

func kafkaFrozen(*rand.Rand) fault {
	return fault{"Kafka frozen", "kafka",
		func(w *world) error { return broken(w.kafka.signal(syscall.SIGSTOP)) },
		func(w *world) error { w.kafka.signal(syscall.SIGCONT); return nil }}
}

func etcdKilled(*rand.Rand) fault {
	return fault{"etcd killed", "etcd",
		func(w *world) error { return broken(w.etcd.kill(syscall.SIGKILL)) },
		func(w *world) error { return w.etcd.start() }}
}

func etcdFrozen(*rand.Rand) fault {
	return fault{"etcd frozen", "etcd",
		func(w *world) error { return broken(w.etcd.signal(syscall.SIGSTOP)) },
		func(w *world) error { w.etcd.signal(syscall.SIGCONT); return nil }}
}

// etcdWiped brings etcd back empty; then an operator restores it.
func etcdWiped(*rand.Rand) fault {
	return fault{"etcd wiped", "etcd",
		func(w *world) error {
			w.etcd.kill(syscall.SIGKILL)
			return errors.Join(os.RemoveAll(w.etcdDir()), w.etcd.start())
		},
		func(w *world) error { return w.restoreEtcd() }}
}

// restoreEtcd does what docs/outages.md tells an operator to do.
func (w *world) restoreEtcd() error {
	var dirs []string
	for _, p := range slices.Concat(w.brokers, w.nodes) {
		dirs = append(dirs, filepath.Join(w.dir, p.name))
	}
	return eventually(w.ctx, patience, func(context.Context) error {
		out, err := w.command("cluster", "restore", "--etcd", local(w.etcdAt), "--data", strings.Join(dirs, ","))
		w.history.note("restore", out)
		return err
	})
}

// everything kills all processes at once, with or without what they stand on.
func everything(r *rand.Rand) fault {
	neighbours := r.IntN(2) == 0
	return fault{fmt.Sprintf("everything killed, Kafka and etcd too: %t", neighbours), "everything",
		func(w *world) error {
			for _, p := range slices.Concat(w.partitioners, w.nodes, w.brokers) {
				p.kill(syscall.SIGKILL)
			}
			if neighbours {
				w.kafka.signal(syscall.SIGKILL)
				w.etcd.kill(syscall.SIGKILL)
			}
			return nil
		},
		func(w *world) error {
			var errs []error
			if neighbours { // the roles are there before what they stand on
				for _, p := range slices.Concat(w.nodes, w.brokers, w.partitioners) {
					errs = append(errs, p.start())
				}
				return errors.Join(append(errs, w.etcd.start(), w.kafka.start())...)
			}
			for _, p := range slices.Concat(w.nodes, w.brokers, w.partitioners) {
				errs = append(errs, p.start())
			}
			return errors.Join(errs...)
		}}
}
