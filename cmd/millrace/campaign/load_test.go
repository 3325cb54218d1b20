//go:build linux

package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

const (
	members         = 500 // that have new records at a time
	inputsPerSecond = 100
	contentParts    = 4 // partitions of each content topic
)

// inputsPerMember is how many inputs come until a member has had its last
// record and another its first: so the timelines, and with them what it takes to
// judge an answer, do not grow for as long as the campaign lasts.
const inputsPerMember = 200

// load produces records and features with known ids, at a steady rate, for as
// long as the campaign lasts.
type load struct {
	t     *testing.T
	truth *truth
	cl    *kgo.Client
	topic [kafka.Streams]string

	mu struct {
		sync.Mutex
		r    *rand.Rand
		ids  int
		sent int
		tick int64
		live []post // that may be edited and deleted
	}
}

// post is a record as it was sent last.
type post struct {
	id, actor, verb, object, about string
	at                             millrace.Time
	version                        int64
}

func newLoad(t *testing.T, l *truth, cl *kgo.Client, seed uint64, topic [kafka.Streams]string) *load {
	g := &load{t: t, truth: l, cl: cl, topic: topic}
	g.mu.r = rand.New(rand.NewPCG(seed, 2))
	return g
}

// run sends inputs until ctx is done.
func (g *load) run(ctx context.Context) {
	tick := time.NewTicker(time.Second / inputsPerSecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.one(ctx)
		}
	}
}

// burst sends inputs, and returns when they are acknowledged.
func (g *load) burst(ctx context.Context, inputs int) {
	g.t.Helper()
	for range inputs {
		g.one(ctx)
	}
	if err := g.cl.Flush(ctx); err != nil {
		g.t.Fatal(err)
	}
}

// one sends one input: half of them are new records, the others change or
// delete one, or are features.
func (g *load) one(ctx context.Context) {
	g.mu.Lock()
	r := g.mu.r
	g.mu.sent++
	stream, line := content, []byte(nil)
	switch at := r.IntN(100); {
	case at < 15:
		stream, line = features, g.features()
	case at < 40 && len(g.mu.live) > 100:
		line = g.edit(false)
	case at < 48 && len(g.mu.live) > 100:
		line = g.edit(true)
	default:
		line = g.create()
	}
	to := int32(r.IntN(contentParts))
	g.mu.Unlock()
	g.send(ctx, stream, to, line)
}

// send produces a line of JSON to the content or the feature topic.
func (g *load) send(ctx context.Context, stream int, to int32, line []byte) {
	schema := schemas.Activity()
	if stream == features {
		schema = schemas.Features()
	}
	body, env, err := encode(schema, line)
	if err != nil {
		g.t.Errorf("%s: %v", line, err)
		return
	}
	acked := g.truth.send(stream, env)
	g.cl.Produce(ctx, &kgo.Record{Topic: g.topic[stream], Partition: to, Value: schemas.Frame(schema.Fingerprint(), body)}, func(_ *kgo.Record, err error) {
		if err == nil {
			acked()
		}
	})
}

func encode(s *schemas.Schema, line []byte) (body []byte, env schemas.Envelope, err error) {
	if body, err = s.EncodeJSON(line); err != nil {
		return nil, env, err
	}
	env, err = s.Envelope(body)
	return body, env, err
}

var verbs = []string{"post", "share", "like", "comment"}

// memberOf names a member.
func memberOf(n int) millrace.Entity { return millrace.Entity(fmt.Sprintf("member:%d", n)) }

// known is how many members there have been. The caller holds the lock.
func (g *load) known() int { return members + g.mu.sent/inputsPerMember }

// population is how many members there have been.
func (g *load) population() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known()
}

func (g *load) member() string { return string(memberOf(g.known() - 1 - g.mu.r.IntN(members))) }

// create makes a new record; a third are about an object that others are about
// too, a quarter are in a second timeline, and some are older than others.
func (g *load) create() []byte {
	r := g.mu.r
	g.mu.ids++
	p := post{id: fmt.Sprintf("r%d", g.mu.ids), actor: g.member(), verb: verbs[r.IntN(len(verbs))], at: millrace.TimeOf(time.Now())}
	if r.IntN(3) == 0 {
		p.object = fmt.Sprintf("object:%d", r.IntN(200))
	}
	if r.IntN(4) == 0 {
		p.about = g.member()
	}
	if r.IntN(10) == 0 {
		p.at -= millrace.Time(r.IntN(600_000))
	}
	if len(g.mu.live) < 20_000 {
		g.mu.live = append(g.mu.live, p)
	} else {
		g.mu.live[r.IntN(len(g.mu.live))] = p
	}
	return g.line(p, false)
}

// edit makes a newer version of a record, or deletes it.
func (g *load) edit(deleted bool) []byte {
	i := g.mu.r.IntN(len(g.mu.live))
	g.mu.live[i].version++
	p := g.mu.live[i]
	if deleted {
		g.mu.live[i] = g.mu.live[len(g.mu.live)-1]
		g.mu.live = g.mu.live[:len(g.mu.live)-1]
	}
	return g.line(p, deleted)
}

func (g *load) line(p post, deleted bool) []byte {
	r := g.mu.r
	about := ""
	if p.about != "" {
		about = fmt.Sprintf("%q", p.about)
	}
	return fmt.Appendf(nil, `{"id":%q,"actor":%q,"verb":%q,"created_at":%d,"object":%q,"about":[%s],"version":%d,"deleted":%t,"language":%q,"likes":%d,"comments":%d}`,
		p.id, p.actor, p.verb, p.at, p.object, about, p.version, deleted, []string{"en", "de", ""}[r.IntN(3)], r.IntN(50), r.IntN(9))
}

// features makes features of a member, or of an object that the member routes.
func (g *load) features() []byte {
	r := g.mu.r
	g.mu.tick++
	subject := ""
	if r.IntN(3) == 0 {
		subject = fmt.Sprintf("object:%d", r.IntN(200))
	}
	return fmt.Appendf(nil, `{"entity":%q,"subject":%q,"updated_at":%d,"followers":%d,"posts":%d,"engagement":%g}`,
		g.member(), subject, g.mu.tick, r.IntN(1000), r.IntN(100), r.Float64())
}
