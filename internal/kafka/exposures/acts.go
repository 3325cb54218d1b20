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

// ActReaderConfig says where outcomes and answers are.
type ActReaderConfig struct {
	Brokers                      kafka.Brokers
	Exposures, Outcomes, Schemas string        // topics
	AnswerField                  string        // of outcomes
	Actions                      []string      // that are counted; nil: all
	Named                        bool          // AnswerField is one that somebody has named, and has to be there
	Window                       time.Duration // after an answer
	Experiment                   string        // whose answers count in [ActReader.Told]; empty: all do
	From                         millrace.Time // of answers
	Log                          *slog.Logger  // is told of entries that are no outcomes; nil: nobody
}

// ActReader reads acts, each an outcome with the answer that it belongs to: what viewers did
// with what they were shown. It does so again and again: each
// [ActReader.Read] goes on where the one before ended.
//
// Every outcome is looked at by two readings, because its answer may not have been written
// yet at the first. So acts may come twice, and whoever takes them must count each once. For
// at most 200,000 outcomes at a time, which bounds the memory, the answers are read anew as far
// back as the window reaches. The first such passage over the answers tells which viewers
// were shown anything; the rest of the reading keeps no outcomes of others.
type ActReader struct {
	cfg          ActReaderConfig
	id           kadm.TopicID    // of outcomes; zero: not known yet
	before, next map[int32]int64 // where the last two readings ended
	Faults       outcome.Faults  // entries that are no outcomes; a reading that failed counts them once more
	seen         outcome.Seen    // schemas of all readings
	told         became          // of outcomes that no reading looks at again
	last         became          // of outcomes that the next reading looks at again
	floor        millrace.Time   // since when those of last have come
	newest       millrace.Time   // see [ActReader.Newest]
	whole        time.Time       // as of when all outcomes have been read; zero: never
	did, shown   kafka.Reach     // of outcomes, and of exposures
	unshown      error           // why answers are hidden from the reading under way; nil: none are
	most         int             // outcomes for which one passage over the answers is made
}

// became is what became of outcomes, and how they came along.
type became struct {
	outcome.Report
	outcome.Course
}

func (b *became) plus(later *became) became {
	return became{b.Report.Plus(later.Report), *b.Course.Plus(&later.Course)}
}

// NewActReader begins where answers of that time may have outcomes.
func NewActReader(cfg ActReaderConfig) *ActReader {
	return &ActReader{cfg: cfg, seen: outcome.Seen{}, most: maxActs}
}

// Newest returns when the newest outcome was that has been read, of the actions that are
// counted, whether it belongs to an answer or not; 0: none was. One with a time in the
// future counts as of when it was read. [ActReader.Course] knows the newest that belongs to an
// answer.
func (a *ActReader) Newest() millrace.Time { return a.newest }

// Whole returns as of when all outcomes have been read; zero: as of no time yet.
func (a *ActReader) Whole() time.Time { return a.whole }

// Told returns what became of all outcomes of the actions that are counted, as the last
// reading found that looked at each and did not fail. Of an outcome that came twice, that is
// noticed if one reading had both.
func (a *ActReader) Told() outcome.Report { return a.told.Report.Plus(a.last.Report) }

// Course returns how those outcomes came along. What a reading finds counts as come since
// the one before, even if its time is earlier.
func (a *ActReader) Course() *outcome.Course { return a.told.Course.Plus(&a.last.Course) }

// recentActs bounds how old the newest outcomes may be that can be read, while open
// transactions, one after the other, hide newer ones.
const recentActs = time.Minute

// Topic returns which topic of outcomes was read last.
func (a *ActReader) Topic() exposure.Topic { return topicOf(a.cfg.Outcomes, a.id) }

// maxActs is [ActReader.most], or less of tests.
const maxActs = 200_000

// Read takes the acts that are found up to where the topics end now, in the
// order of their times within at most 200,000. When it fails, the next reading
// begins where this one did. It fails where open transactions hide answers
// ([kafka.Hidden]) to which outcomes may belong, and where they hide outcomes, which then
// come with a later reading. If the topic of outcomes is another one than at the reading
// before, it fails once, with [exposure.ErrAnew], and then begins with the new topic. It also
// fails, once all are taken, if no entry can be one of the actions or has the field: see
// [outcome.Seen.Lacks].
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
	var told [2]became // of outcomes that are looked at for the first time, and again
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

// index is the place of a report: 1 on what is looked at again, 0 on the rest.
func index(again bool) int {
	if again {
		return 1
	}
	return 0
}

// decode reads an outcome.
func (a *ActReader) decode(known *registry.Snapshot, in kafka.Entry) (outcome.Outcome, error) {
	if in.Closed != nil {
		return outcome.Outcome{}, in.Closed
	}
	a.seen.Add(known, in.Value)
	return outcome.Decode(known, in.Value, a.cfg.AnswerField)
}

// since is from when on answers may have outcomes.
func (a *ActReader) since(ledger *outcome.Ledger) millrace.Time {
	return max(a.cfg.From, ledger.Earliest()-millrace.Time(a.cfg.Window.Milliseconds()))
}

// settle finds the answers that outcomes belong to, takes the acts, and calls meet with each
// answer that may have outcomes.
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
