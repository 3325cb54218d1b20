package team

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
)

// turns is how many times each system is measured. In a turn, all are measured one after the
// other.
const turns = 3

// result is what was measured of a system.
type result struct {
	*system
	exact int           // how many answers equal the oracle's
	wrong string        // how the first wrong answer differs from the oracle's; "": no answer is wrong
	one   rig.Latencies // the latencies of one client in all turns; byTurns sorts them at its end

	// The rest is measured with two clients. All but memory is summed over turns.
	queries int
	elapsed time.Duration
	cpu     []time.Duration // CPU time, by role
	client  time.Duration   // CPU time of the clients
	log     time.Duration   // CPU time of the log and etcd; -1: not known
	memory  int64           // the memory of all roles after the last turn, in bytes
}

// clients is how many clients ask at the same time while CPU time is measured.
const clients = 2

// byTurns has every system answer every question once and warm up, and then measures the
// systems by turns. The results are in the order of all.
func (r *run) byTurns(all []*system) ([]*result, error) {
	var results []*result
	askers := map[*result][]asker{}
	for _, s := range all {
		res := &result{system: s, cpu: make([]time.Duration, len(s.roles))}
		results = append(results, res)
		for range clients {
			a, err := s.dial(r.family.Ctx)
			if err != nil {
				return nil, err
			}
			askers[res] = append(askers[res], a)
		}
		if err := r.judge(res, askers[res][0]); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		r.say("%s: %d of %d answers are the oracle's", s.name, res.exact, len(r.w.asked))
		if _, _, err := r.closed(askers[res], r.Duration); err != nil { // to warm up
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for turn := range turns {
		for _, res := range results {
			if err := r.turn(res, askers[res]); err != nil {
				return nil, fmt.Errorf("%s: %w", res.name, err)
			}
		}
		r.say("turn %d of %d is done", turn+1, turns)
	}
	for _, res := range results {
		slices.Sort(res.one)
	}
	return results, nil
}

// judge asks every question once, and compares the answers in full with the oracle's.
func (r *run) judge(res *result, a asker) error {
	judge := res.system.judge
	if judge == nil {
		judge = func(i int, a *answer) string { return r.truth.judge(i, a.items) }
	}
	for i := range r.w.asked {
		var got answer
		if err := a.ask(r.family.Ctx, &r.w.asked[i], &got); err != nil {
			return err
		}
		if diff := judge(i, &got); diff == "" {
			res.exact++
		} else if res.wrong == "" {
			res.wrong = fmt.Sprintf("question %d: %s", i, diff)
		}
	}
	return nil
}

// closed has the clients ask for the time length, each one question after the other. The ids
// of every answer are compared with the oracle's. It returns the latencies of all clients
// together, and the time that it took.
func (r *run) closed(askers []asker, length time.Duration) (rig.Latencies, time.Duration, error) {
	next := make([]int, len(askers))
	got := make([]answer, len(askers))
	for i := range next {
		next[i] = i * len(r.w.asked) / len(askers) // so that they do not ask the same at the same time
	}
	return rig.Closed(r.family.Ctx, len(askers), length, func(ctx context.Context, client int) error {
		i := next[client] % len(r.w.asked)
		next[client]++
		if err := askers[client].ask(ctx, &r.w.asked[i], &got[client]); err != nil {
			return err
		}
		return r.glance(i, &got[client])
	})
}

// glance returns an error if the ids of the answer to the ith question are not the oracle's.
// It is fast, since it is part of what is measured; judge compares answers in full.
func (r *run) glance(i int, a *answer) (err error) {
	want, n := r.truth.answers[i].Items, 0
	a.ids(func(j int, id string) {
		if n++; j < len(want) && string(want[j].ID) != id {
			err = fmt.Errorf("question %d: item %d is %s, want %s", i, j, id, want[j].ID)
		}
	})
	if n != len(want) {
		err = fmt.Errorf("question %d: %d items, want %d", i, n, len(want))
	}
	return err
}

// turn measures a system once: with one client, then with all.
func (r *run) turn(res *result, askers []asker) error {
	one, _, err := r.closed(askers[:1], r.Duration)
	if err != nil {
		return err
	}
	res.one = append(res.one, one...)
	profiles, err := r.profiles(res.system)
	if err != nil {
		return err
	}
	before, err := res.used()
	if err != nil {
		return err
	}
	two, elapsed, err := r.closed(askers, r.Duration)
	if err != nil {
		return err
	}
	after, err := res.used()
	if err != nil {
		return err
	}
	res.queries += len(two)
	res.elapsed += elapsed
	res.client += after.client - before.client
	res.memory = 0
	for i := range res.roles {
		res.cpu[i] += after.roles[i].CPU - before.roles[i].CPU
		res.memory += after.roles[i].Bytes
	}
	if min(before.log, after.log, res.log) < 0 {
		res.log = -1
	} else {
		res.log += after.log - before.log
	}
	return profiles.Wait()
}

// profiles begins to write CPU profiles of the roles of a system, if the configuration asks
// for them. Its group waits for all of them.
func (r *run) profiles(s *system) (*errgroup.Group, error) {
	var g errgroup.Group
	if r.Profile == "" {
		return &g, nil
	}
	if err := os.MkdirAll(r.Profile, 0o755); err != nil {
		return nil, err
	}
	for name, p := range s.profile {
		g.Go(func() error {
			return p.Profile(r.family.Ctx, r.Duration, filepath.Join(r.Profile, r.label()+"-"+name+".pprof"))
		})
	}
	return &g, nil
}

// usage is what a system and its clients have used since they began.
type usage struct {
	roles       []rig.Used    // in the order of system.roles
	client, log time.Duration // CPU time of this process, and of the log and etcd; log -1: not known
}

func (s *system) used() (u usage, err error) {
	u.client, u.log = rig.OwnCPU(), -1
	for _, role := range s.roles {
		x, err := role.used()
		if err != nil {
			return u, err
		}
		u.roles = append(u.roles, x)
	}
	if s.log != nil {
		if x, err := s.log(); err == nil {
			u.log = x.CPU
		}
	}
	return u, nil
}

// overhead is what Millrace uses besides looking for records. Node, broker and log are shares
// of one processor while nobody asks, 1 being all of it; log is what the log and etcd use
// together, NaN if it is not known. Calls is the CPU time of a question about an entity that
// nobody knows, of node, broker and client.
type overhead struct {
	node, broker, log float64
	calls             time.Duration
}

// overhead measures Millrace alone. s has the roles node and broker.
func (r *run) overhead(s *system, client asker) (o overhead, err error) {
	before, err := s.used()
	if err != nil {
		return o, err
	}
	select {
	case <-time.After(r.Duration):
	case <-r.family.Ctx.Done():
		return o, errors.New("ended while what an idle system uses was measured")
	}
	rested, err := s.used()
	if err != nil {
		return o, err
	}
	share := func(before, after time.Duration) float64 { return float64(after-before) / float64(r.Duration) }
	o.node, o.broker, o.log = share(before.roles[0].CPU, rested.roles[0].CPU), share(before.roles[1].CPU, rested.roles[1].CPU), share(before.log, rested.log)
	if min(before.log, rested.log) < 0 {
		o.log = math.NaN()
	}
	nobody := question{req: proto.CloneOf(r.w.asked[0].req)}
	nobody.req.Entities = []string{"nobody"}
	l, elapsed, err := rig.Closed(r.family.Ctx, clients, r.Duration, func(ctx context.Context, _ int) error {
		var a answer
		err := client.ask(ctx, &nobody, &a)
		if err == nil && len(a.feed.Items) > 0 {
			err = errors.New("an entity that nobody knows has records")
		}
		return err
	})
	if err != nil {
		return o, err
	}
	after, err := s.used()
	if err != nil {
		return o, err
	}
	all := after.client - rested.client - time.Duration((o.node+o.broker)*float64(elapsed))
	for i := range s.roles {
		all += after.roles[i].CPU - rested.roles[i].CPU
	}
	o.calls = all / time.Duration(max(1, len(l)))
	return o, nil
}
