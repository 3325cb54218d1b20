package exposures

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/schemas/registry"
)

// ActReaderConfig says where outcomes and answers (exposures) are, and which count.
type ActReaderConfig struct {
	Brokers                      kafka.Brokers
	Exposures, Outcomes, Schemas string        // topics
	AnswerField                  string        // the field of an outcome that names its answer
	Actions                      []string      // the actions that count; nil: all
	Named                        bool          // a person has named AnswerField, so outcomes must have it
	Window                       time.Duration // how long after its answer an outcome may come
	Experiment                   string        // whose answers count in [ActReader.Told]; empty: all do
	From                         millrace.Time // the time of the first answers that count
	Log                          *slog.Logger  // is told of entries that are no outcomes; nil: nothing is logged
}

// ActReader reads acts: what viewers did with what they were shown. An act is an outcome
// together with the answer that it belongs to. Each [ActReader.Read] goes on where the one
// before ended.
//
// Every outcome is looked at by two readings, because its answer may not have been written
// yet at the first. So an act may come twice, and the taker must count it once. Outcomes are
// held at most 200,000 at a time, to bound the memory. For each such group the answers are
// read anew, as far back as the window reaches. The first pass over the answers also shows
// which viewers were shown anything; after it, the reading keeps no outcomes of others.
type ActReader struct {
	cfg          ActReaderConfig
	id           kadm.TopicID    // of the topic of outcomes; zero: not known yet
	before, next map[int32]int64 // by partition, where the reading before the last and the last one ended
	Faults       outcome.Faults  // entries that are no outcomes; a reading that is repeated counts them again
	seen         outcome.Seen    // the schemas of outcomes in all readings
	told         became          // of outcomes that no reading looks at again
	last         became          // of outcomes that the next reading looks at again
	floor        millrace.Time   // since when the outcomes in last have come
	newest       millrace.Time   // see [ActReader.Newest]
	whole        time.Time       // up to when all outcomes have been read; zero: never
	did, shown   kafka.Reach     // of the topics of outcomes and of exposures
	unshown      error           // why answers are hidden from the present reading; nil: none are
	most         int             // how many outcomes are held for one pass over the answers
}

// became is what became of outcomes, and when they came.
type became struct {
	outcome.Report
	outcome.Course
}

// plus returns the sum of both; later came after b.
func (b *became) plus(later *became) became {
	return became{b.Report.Plus(later.Report), *b.Course.Plus(&later.Course)}
}

// NewActReader returns a reader of the acts of answers from cfg.From on. It connects to
// nothing yet.
func NewActReader(cfg ActReaderConfig) *ActReader {
	return &ActReader{cfg: cfg, seen: outcome.Seen{}, most: maxActs}
}

// Newest returns the time of the newest outcome read, of the actions that count, whether or
// not it belongs to an answer; 0: none was read. An outcome with a time in the future counts
// as of the time when it was read. [ActReader.Course] has the newest outcome that belongs to
// an answer.
func (a *ActReader) Newest() millrace.Time { return a.newest }

// Whole returns the time up to which all outcomes have been read; zero: none yet.
func (a *ActReader) Whole() time.Time { return a.whole }

// Told returns what became of all outcomes of the actions that count: of each, what the last
// reading found that looked at it and did not fail. That an outcome was logged twice is
// noticed only if one reading had both.
func (a *ActReader) Told() outcome.Report { return a.told.Report.Plus(a.last.Report) }

// Course returns when those outcomes came. What a reading finds counts as having come since
// the reading before, even if its time is earlier.
func (a *ActReader) Course() *outcome.Course { return a.told.Course.Plus(&a.last.Course) }

// recentActs is how old the newest readable outcomes may be while open transactions, one
// after the other, hide newer ones. If they are older, Read fails.
const recentActs = time.Minute

// Topic returns which topic of outcomes was read last.
func (a *ActReader) Topic() exposure.Topic { return topicOf(a.cfg.Outcomes, a.id) }

// maxActs is ActReader.most, except in tests.
const maxActs = 200_000

// Read passes the acts up to the present ends of the topics to take. They are in the order of
// their times only within each group of 200,000 outcomes. After most failures the next
// reading begins where this one did. Read fails
//
//   - if open transactions hide answers ([kafka.Hidden]) to which outcomes may belong;
//   - if open transactions hide outcomes for longer than recentActs. The acts so far have
//     been taken, and the hidden ones come with a later reading;
//   - if the topic of outcomes is another one than at the reading before: once, with
//     [exposure.ErrAnew]. The next reading begins with the new topic;
//   - after all acts have been taken, if no entry can be one of the actions, or none has the
//     field: see [outcome.Seen.Lacks].
func (a *ActReader) Read(ctx context.Context, take func(*outcome.Act)) error {
	did, err := kafka.OpenTopic(ctx, a.cfg.Brokers, a.cfg.Outcomes, max(0, a.cfg.From-millrace.Time(outcome.Skew.Milliseconds())))
	if err != nil {
		if e := (*millrace.Error)(nil); errors.As(err, &e) {
			e.Field, e.WayOut = "outcomes.topic", "name the topic that outcomes are written to"
		}
		return err
	}
	was := a.id
	if a.id = did.ID(); was != did.ID() && was != (kadm.TopicID{}) {
		a.before, a.next, a.did, a.told, a.last = nil, nil, kafka.Reach{}, a.told.plus(&a.last), became{}
		return a.Topic().Anew()
	}
	a.unshown = nil
	did.After(a.before)
	next := maps.Clone(a.next)
	if next == nil {
		next = map[int32]int64{}
	}
	ends := did.Ends()
	maps.Copy(next, ends)
	var told [2]became // of outcomes looked at for the first time, and for the second time
	if len(ends) > 0 {
		if told, err = a.read(ctx, did, take); err != nil {
			return err
		}
	}
	if a.unshown != nil {
		return a.unshown
	}
	a.before, a.next = a.next, next
	a.told, a.last, a.floor = a.told.plus(&told[1]), told[0], millrace.TimeOf(a.whole)
	whole, err := did.Look(&a.did, recentActs)
	if err != nil {
		return err
	}
	a.whole = whole
	field := ""
	if a.cfg.Named {
		field = a.cfg.AnswerField
	}
	return a.seen.Lacks(a.cfg.Outcomes, a.cfg.Actions, field)
}

func (a *ActReader) read(ctx context.Context, did *kafka.TopicSpan, take func(*outcome.Act)) (told [2]became, err error) {
	known, err := schemalog.Known(ctx, a.cfg.Brokers, a.cfg.Schemas)
	if err != nil {
		return told, err
	}
	settle := func(ledger *outcome.Ledger, meet func(*exposure.Record)) error {
		found, err := a.settle(ctx, ledger, meet, take)
		for i := range told {
			told[i].Report = told[i].Report.Plus(found[i])
		}
		return err
	}
	ledger, met := outcome.NewLedger(a.cfg.Window), (*outcome.Met)(nil)
	now := millrace.TimeOf(time.Now())
	notes := [2]outcome.Notes{{From: millrace.TimeOf(a.whole), Until: now}, {From: a.floor, Until: now}}
	ledger.Note(&notes)
	sound := a.Faults.N == 0
	defer func() {
		if sound && a.Faults.N > 0 && a.cfg.Log != nil {
			a.cfg.Log.Warn("entries that are no outcomes are not counted", "topic", a.cfg.Outcomes, "entries", a.Faults.N, "first", a.Faults.First)
		}
	}()
	err = did.ReadEntries(ctx, func(in kafka.Entry) error {
		again := in.Offset < a.next[in.Partition]
		o, err := a.decode(known, in)
		if err != nil {
			if !again {
				a.Faults.Add(err)
			}
			return nil
		}
		if a.cfg.Actions != nil && !slices.Contains(a.cfg.Actions, o.Action) {
			return nil
		}
		o.Again = again
		a.newest = max(a.newest, min(o.At, now))
		if met != nil && met.Lacks(&o, a.cfg.Window) {
			told[index(again)].Nothing++
			return nil
		}
		if err := ledger.Add(o); err != nil || ledger.Len() < a.most {
			return err
		}
		if from := a.since(ledger); met == nil || from < met.From() {
			met = outcome.NewMet(from)
			err = settle(ledger, met.Add)
		} else {
			err = settle(ledger, func(*exposure.Record) {})
		}
		ledger.Reset()
		return err
	})
	if err == nil && ledger.Len() > 0 {
		err = settle(ledger, func(*exposure.Record) {})
	}
	told[0].Course, told[1].Course = notes[0].Course, notes[1].Course
	return told, err
}

// index returns the index in told: 1 for an outcome that is looked at again, else 0.
func index(again bool) int {
	if again {
		return 1
	}
	return 0
}

// decode decodes an outcome, and notes its schema.
func (a *ActReader) decode(known *registry.Snapshot, in kafka.Entry) (outcome.Outcome, error) {
	if in.Closed != nil {
		return outcome.Outcome{}, in.Closed
	}
	a.seen.Add(known, in.Value)
	return outcome.Decode(known, in.Value, a.cfg.AnswerField)
}

// since returns the time of the earliest answers to which outcomes of the ledger may belong.
func (a *ActReader) since(ledger *outcome.Ledger) millrace.Time {
	return max(a.cfg.From, ledger.Earliest()-millrace.Time(a.cfg.Window.Milliseconds()))
}

// settle reads the answers, finds those that the ledger's outcomes belong to, and passes the
// acts to take. It calls meet with every answer that it reads. told is what became of
// outcomes looked at for the first time, and again.
func (a *ActReader) settle(ctx context.Context, ledger *outcome.Ledger, meet func(*exposure.Record), take func(*outcome.Act)) (told [2]outcome.Report, err error) {
	shown, err := kafka.OpenTopic(ctx, a.cfg.Brokers, a.cfg.Exposures, a.since(ledger))
	if err != nil {
		return told, err
	}
	if _, err := shown.Look(&a.shown, recentActs); err != nil {
		a.unshown = err
	}
	return ledger.Acts(a.cfg.Experiment, func(offer func(*exposure.Record)) error {
		_, err := ReadSpan(ctx, shown, func(r *exposure.Record) {
			if r.Time >= a.cfg.From {
				meet(r)
				offer(r)
			}
		})
		return err
	}, take)
}
