//go:build synctests

package simulation

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// later is the schema of activities with another field, which comes in the
// middle of some histories.
var later = func() *schemas.Schema {
	text := strings.Replace(schemas.Activity().JSON(), `{"name": "likes"`, `{"name": "mood", "type": "string", "default": ""}, {"name": "likes"`, 1)
	s, err := schemas.Parse([]byte(text))
	if err != nil || s.Fingerprint() == schemas.Activity().Fingerprint() {
		panic(fmt.Sprintf("the later schema: %v, of %s", err, text))
	}
	return s
}()

// history is one life of a cluster: what comes in, what breaks, what is asked,
// all of it drawn from the seed before it begins.
type history struct {
	seed     uint64
	w        *world
	truth    *truth
	asks     asker
	producer *kgo.Client
	schemas  *schemalog.Log
	sends    *rand.Rand // what comes in
	ids      int
	versions int64
	evolved  bool
	trimmed  map[millrace.Partition]bool // the beginning of their log is gone
	lonely   string                      // the only host that anything befalls; empty: anything befalls all
	deaf     bool                        // it answers the broker nothing
	struck   time.Time                   // when it begins to
	told     []string                    // what was done
	findings []string
}

// step is something that is done at a time.
type step struct {
	at   time.Duration
	what string // empty: nothing worth telling
	do   func()
}

func (h *history) found(kind, format string, args ...any) {
	h.findings = append(h.findings, kind+": "+fmt.Sprintf(format, args...))
}

// lasts is how long inputs come and things break; then everything is mended.
const lasts = 20 * time.Second

// live goes through a history, and returns what it found.
func live(t *testing.T, seed uint64) (h *history) {
	h = &history{seed: seed, trimmed: map[millrace.Partition]bool{}}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		schedule := rand.New(rand.NewPCG(seed, 1))
		h.sends = rand.New(rand.NewPCG(seed, 2))
		asks := rand.New(rand.NewPCG(seed, 3))
		h.w = newWorld(t, seed, rand.New(rand.NewPCG(seed, 4)))
		defer h.w.close()
		h.truth = newTruth(h.w, h.found)
		h.begin()
		steps := h.inputs(schedule)
		if schedule.IntN(4) == 0 {
			steps = append(steps, h.lonelyFault(schedule)...)
		} else {
			steps = append(steps, h.faults(schedule)...)
		}
		last := slices.MaxFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) }).at
		for at := 4 * time.Second; at < max(last, lasts); at += time.Duration(100+schedule.IntN(700)) * time.Millisecond {
			steps = append(steps, step{at: at, do: func() { h.asks.ask(h.w, h.draw(asks)) }})
		}
		slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
		for _, s := range steps {
			time.Sleep(time.Until(began.Add(s.at)))
			if s.what != "" {
				h.told = append(h.told, fmt.Sprintf("%s %s", s.at, s.what))
				h.w.log.Warn("simulation: " + s.what)
			}
			s.do()
		}
		time.Sleep(time.Until(began.Add(lasts)))
		h.mend()
		h.settle()
		h.end()
	})
	return h
}

// begin has everything run that a history begins with.
func (h *history) begin() {
	h.producer = h.w.plain()
	h.w.closed = append(h.w.closed, h.producer.Close)
	registry, err := registry.New(nil, nil)
	h.w.must(err)
	h.schemas, err = schemalog.Open(schemalog.Config{Brokers: h.w.brokers(h.w.judge), Topic: h.w.topics.WithDefaults().Schemas, Registry: registry, Log: h.w.log})
	h.w.must(err)
	h.w.closed = append(h.w.closed, func() { h.schemas.Close() })
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		h.w.must(h.schemas.Publish(h.w.t.Context(), s))
	}
	for _, n := range h.w.nodes {
		n.start()
	}
	h.w.partitioners[0].start()
	h.w.startBroker()
}

// inputs draws when records come: in bursts, with pauses in between.
func (h *history) inputs(r *rand.Rand) (steps []step) {
	for at := time.Duration(r.IntN(3000)) * time.Millisecond; at < lasts; at += time.Duration(r.IntN(4000)) * time.Millisecond {
		n := 1 + r.IntN(6)
		steps = append(steps, step{at: at, do: func() {
			for range n {
				h.send()
			}
		}})
	}
	if r.IntN(3) == 0 {
		steps = append(steps, step{time.Duration(4000+r.IntN(14000)) * time.Millisecond, "another schema", func() {
			h.w.must(h.schemas.Publish(h.w.t.Context(), later))
			h.truth.schemas[later.Fingerprint()], h.evolved = later, true
		}})
	}
	for range r.IntN(3) {
		steps = append(steps, step{time.Duration(4000+r.IntN(14000)) * time.Millisecond, "a record of the log that no node can take", h.stray})
	}
	return steps
}

var verbs = []string{"post", "share", "like", "comment"}

// send sends one input.
func (h *history) send() {
	r := h.sends
	in := &input{schema: schemas.Activity()}
	topic, key, value := contentTopic, []byte(nil), []byte(nil)
	e := func() millrace.Entity { return h.w.entities[r.IntN(len(h.w.entities))] }
	h.versions++
	line := ""
	switch at := r.IntN(100); {
	case at < 5: // nothing that can be read
		in.refused, value = true, []byte(fmt.Sprint("garbage ", h.versions))
	case at < 7:
		in.ignored, key = true, []byte("tombstone")
	case at < 22:
		topic, in.schema = featuresTopic, schemas.Features()
		line = fmt.Sprintf(`{"entity":%q,"updated_at":%d,"followers":%d}`, e(), h.w.began.UnixMilli()+h.versions, r.IntN(1000)) // no two at one time
	default:
		if h.evolved && r.IntN(2) == 0 {
			in.schema = later
		}
		id := fmt.Sprint("r", r.IntN(h.ids+1))
		if h.ids == 0 || at < 60 {
			h.ids++
			id = fmt.Sprint("r", h.ids)
		}
		about, mood := "", ""
		if in.schema == later {
			mood = `,"mood":"glad"`
		}
		if r.IntN(3) == 0 {
			about = fmt.Sprintf("%q", e())
		}
		version := h.versions
		if r.IntN(5) == 0 {
			version = -version // older than all others of its id
		}
		line = fmt.Sprintf(`{"id":%q,"actor":%q,"verb":%q,"created_at":%d,"object":%q,"about":[%s],"version":%d,"deleted":%t,"language":%q,"likes":%d,"comments":%d%s}`,
			id, e(), verbs[r.IntN(len(verbs))], time.Now().UnixMilli()-int64(r.IntN(2))*int64(r.IntN(60_000)), []string{"", fmt.Sprint("object:", r.IntN(8))}[r.IntN(2)], about, version, at >= 90,
			[]string{"en", "de", ""}[r.IntN(3)], r.IntN(50), r.IntN(9), mood)
	}
	if line != "" {
		body, err := in.schema.EncodeJSON([]byte(line))
		h.w.must(err)
		in.env, err = in.schema.Envelope(body)
		h.w.must(err)
		value = schemas.Frame(in.schema.Fingerprint(), body)
	}
	at, err := h.producer.ProduceSync(h.w.t.Context(), &kgo.Record{Topic: topic, Partition: int32(r.IntN(contentParts)), Key: key, Value: value}).First()
	h.w.must(err)
	in.source, in.acked = fmt.Sprintf("%s/%d/%d", at.Topic, at.Partition, at.Offset), time.Now()
	h.truth.inputs = append(h.truth.inputs, in)
}

// stray puts a record into the log itself that every node must refuse.
func (h *history) stray() {
	e := h.w.entities[h.sends.IntN(len(h.w.entities))]
	at, err := h.producer.ProduceSync(h.w.t.Context(), &kgo.Record{
		Topic: h.w.topics.WithDefaults().Timeline, Partition: int32(partition.Of(e)), Key: []byte(e), Value: []byte("no record"),
	}).First()
	h.w.must(err)
	h.truth.stray[fmt.Sprintf("%s/%d/%d", at.Topic, at.Partition, at.Offset)] = true
}

// mend ends everything that is broken.
func (h *history) mend() {
	h.w.log.Warn("simulation: everything is mended")
	h.w.net.healAll()
	h.w.kafka.DropControl()
	for _, d := range h.w.disks {
		d.full.Store(false)
	}
	for _, n := range h.w.nodes {
		n.start()
	}
	h.w.partitioners[0].start()
}

// settledWithin is how long a cluster may take that nothing is wrong with any
// more until it answers for everything.
const settledWithin = 3 * time.Minute

// settle waits until the broker and each node answer what all inputs amount to.
func (h *history) settle() {
	eval, err := newEval()
	h.w.must(err)
	feed := h.truth.fold()
	until := time.Now().Add(settledWithin)
	whole := func(who string, b asks, entities []millrace.Entity, filter string) {
		why := ""
		for {
			q := everything(entities)
			q.Filter = filter
			if len(entities) == 0 {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			got, err := b(ctx, q)
			cancel()
			if err != nil {
				why = err.Error()
				if h.gone(entities) {
					return // nobody has to answer
				}
			} else if why = h.differs(got, eval, feed); why == "" {
				return
			}
			if time.Now().After(until) {
				h.found("unsettled", "%s does not answer for everything %s after all is mended: %s", who, settledWithin, why)
				return
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
	for h.truth.read(h.w.t.Context()); h.truth.awaits(h.trimmed) && time.Now().Before(until); h.truth.read(h.w.t.Context()) {
		time.Sleep(500 * time.Millisecond)
	}
	about := []string{"", "entity.followers >= 300.0"}
	if h.evolved {
		about = append(about, moods)
	}
	for _, filter := range about {
		whole("the broker", h.askBroker, h.w.entities, filter)
		for i := range h.w.nodes {
			whole(string(nodeID(i)), h.askNode(i), h.hostedBy(i), filter)
		}
	}
}

// moods asks for the field that only the later schema has.
const moods = `record.mood == "glad"`

// end judges all that was said.
func (h *history) end() {
	h.asks.running.Wait()
	h.truth.read(h.w.t.Context())
	h.truth.judgeLog(h.trimmed)
	eval, err := newEval()
	h.w.must(err)
	for _, a := range h.asks.answers {
		h.truth.judge(eval, a)
	}
	h.judgeService()
}
