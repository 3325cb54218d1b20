// Package load brings NDJSON files into a content or feature topic: every line
// is checked against a schema, encoded as single-object Avro and produced. A
// line that does not fit is written aside and reported by number and field; it
// stops nothing.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Options says what to load where.
type Options struct {
	Brokers    kafka.Brokers
	Topic      string          // the content or feature topic
	Partitions int32           // how many the topic gets, if it has to be created; 0: 4
	Topics     kafka.Topics    // Millrace's own topics; Schemas and Progress are used
	Schema     *schemas.Schema // what every line must fit
	File       string          // NDJSON; a name that ends in .zst is decompressed
	Rejected   string          // where rejected lines go; empty = FILE.rejected.ndjson, for FILE.ndjson
	Wait       time.Duration   // how long to wait for Kafka, and for a partitioner that consumes the topic; 0 = 30 s
	Force      bool            // load even if no partitioner consumes the topic
	// Review checks the schema against the known schemas before anything is loaded. Its
	// error ends the load. Nil: nothing is checked.
	Review   func(ctx context.Context, known *registry.Snapshot, add *schemas.Schema) error
	Progress io.Writer    // nil = none; a terminal gets a bar, anything else a line a second
	Log      *slog.Logger // nil = silent
}

// Report says how a load went. Blank lines do not count.
type Report struct {
	Lines    int   // lines that were read, loaded or not
	Loaded   int   // records that Kafka acknowledged; Lines - Rejected unless Run failed
	Rejected int   // lines that do not fit
	Bytes    int64 // how many bytes of the file were read, as they lie on the disk
	Elapsed  time.Duration
	Faults   []LineFault // the faults of the first rejected lines, at most maxFaults
	// RejectedFile holds the rejected lines as they were (one longer than 4 MiB
	// is cut); empty if there are none.
	RejectedFile string
}

// LineFault is why a line was rejected.
type LineFault struct {
	Line int // the line's number in the file, from 1
	Err  error
}

// String returns a fault as, for example, line 17: field "likes": a string where a number
// is due.
func (f LineFault) String() string {
	var e *schemas.Error
	switch {
	case errors.As(f.Err, &e) && e.Field != "":
		return fmt.Sprintf("line %d: field %q: %s", f.Line, e.Field, e.Detail)
	case e != nil:
		return fmt.Sprintf("line %d: %s", f.Line, e.Detail)
	}
	return fmt.Sprintf("line %d: %v", f.Line, f.Err)
}

// maxFaults bounds the faults that a Report names. The file of rejected lines has all of
// those lines.
const maxFaults = 100

// maxLineBytes bounds a line, 4 MiB. A record's Avro body of millrace.MaxBodyBytes takes
// less than that as JSON.
const maxLineBytes = 4 * millrace.MaxBodyBytes

// Validate reports every fault of the options at once.
func (o Options) Validate() error {
	var errs []error
	for _, f := range []struct {
		missing bool
		text    string
	}{
		{o.Brokers.None(), "brokers: none given; name at least one host:port"},
		{o.Topic == "", "topic: missing; name the content topic to load into"},
		{o.Schema == nil, "schema: missing; name the schema that the lines fit"},
		{o.File == "", "file: missing; name an NDJSON file"},
		{o.Partitions < 0, fmt.Sprintf("partitions: %d; give a positive number, or none", o.Partitions)},
		{o.Wait < 0, fmt.Sprintf("wait: %s; give a positive duration, or none", o.Wait)},
	} {
		if f.missing {
			errs = append(errs, errors.New("load: "+f.text))
		}
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	o.Topics = o.Topics.WithDefaults()
	if o.Partitions == 0 {
		o.Partitions = 4
	}
	if o.Wait == 0 {
		o.Wait = 30 * time.Second
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Rejected == "" {
		o.Rejected = strings.TrimSuffix(strings.TrimSuffix(o.File, ".zst"), ".ndjson") + ".rejected.ndjson"
	}
	return o
}

// Run loads a file. Before it loads anything, it refuses a topic that no partitioner
// consumes, unless Force is set. A line that does not fit is no error, unless no line
// fits. If loading began, the Report says how far it got even after an error.
func Run(ctx context.Context, o Options) (Report, error) {
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	o = o.withDefaults()
	in, err := openLines(o.File)
	if err != nil {
		return Report{}, err
	}
	defer in.Close()
	if in.is(o.Rejected) {
		return Report{}, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "rejected", Detail: fmt.Sprintf("%s is the file to load, which rejected lines would replace", o.Rejected),
			WayOut: "name another file, or none",
		}
	}
	l := &loader{o: o, in: in, aside: &aside{name: o.Rejected}, began: time.Now()}
	if err := l.prepare(ctx); err != nil {
		return Report{}, err
	}
	if l.to, err = kafka.NewBulkProducer(o.Brokers, o.Log); err != nil {
		return Report{}, err
	}
	defer l.to.Close()
	stop := l.showProgress()
	err = l.run(ctx)
	err = errors.Join(err, l.aside.Close())
	r := l.report()
	stop()
	if err == nil && r.Lines > 0 && r.Rejected == r.Lines {
		err = fmt.Errorf("load: none of %d lines fits schema %s (%s); mend them, or name the schema they were written for", r.Lines, o.Schema.Name(), r.Faults[0])
	}
	return r, err
}

// prepare waits until the topic is consumed, has the schema reviewed, and asks for the
// topic's number of partitions.
func (l *loader) prepare(ctx context.Context) (err error) {
	o := l.o
	if l.future, err = await(ctx, o); err != nil {
		return err
	}
	if o.Review != nil {
		err := withSchemas(o, func(log *schemalog.Log, known *registry.Registry) error {
			if err := log.Refresh(ctx); err != nil {
				return err
			}
			return o.Review(ctx, known.Snapshot(), o.Schema)
		})
		if err != nil {
			return err
		}
	}
	l.partitions, err = kafka.Partitions(ctx, o.Brokers, o.Topic)
	return err
}

// publish publishes the schema, unless this load has done so. It is called only when a line
// fits: a published schema stays for good, and later schemas of its name must be compatible
// with it.
func (l *loader) publish(ctx context.Context) error {
	if l.published {
		return nil
	}
	err := withSchemas(l.o, func(log *schemalog.Log, _ *registry.Registry) error { return log.Publish(ctx, l.o.Schema) })
	l.published = err == nil
	return err
}

// withSchemas calls use with the schemas topic and a new registry that learns from it.
func withSchemas(o Options, use func(*schemalog.Log, *registry.Registry) error) error {
	registry, err := registry.New(nil, nil)
	if err != nil {
		return err
	}
	log, err := schemalog.Open(schemalog.Config{Brokers: o.Brokers, Topic: o.Topics.Schemas, Registry: registry, Log: o.Log})
	if err != nil {
		return err
	}
	defer log.Close()
	return use(log, registry)
}

// loader is one load under way.
type loader struct {
	o          Options
	in         *lines
	to         *kafka.Producer
	aside      *aside
	partitions int32         // how many the topic has
	future     time.Duration // how far a record's time may be after its arrival
	began      time.Time
	counts     counts
	faults     []LineFault // see Report.Faults
	published  bool        // this load has published the schema
}

// errKafka says that a record could not be produced. The producer's Flush says why.
var errKafka = errors.New("load: produce")

// run loads the file, and waits until Kafka has acknowledged all that was handed over,
// also after an error.
func (l *loader) run(ctx context.Context) error {
	err := l.pass(ctx)
	if errors.Is(err, errKafka) {
		err = nil
	}
	return errors.Join(err, l.to.Flush(ctx))
}

// deliver writes the refused lines of a chunk aside, and hands its records to the producer.
func (l *loader) deliver(ctx context.Context, c *chunk) error {
	l.counts.lines.Add(int64(len(c.records) + len(c.refused)))
	for _, r := range c.refused {
		if err := l.reject(r); err != nil {
			return err
		}
	}
	if len(c.records) == 0 {
		return nil
	}
	if err := l.publish(ctx); err != nil {
		return err
	}
	if l.to.ProduceAll(ctx, c.records); l.to.Err() != nil {
		return errKafka
	}
	return nil
}

// reject counts a refused line, notes its fault, and writes it aside.
func (l *loader) reject(r refusal) error {
	l.counts.rejected.Add(1)
	if len(l.faults) < maxFaults {
		l.faults = append(l.faults, LineFault{r.number, r.why})
	}
	if err := l.aside.write(r.text); err != nil {
		return fmt.Errorf("load: write aside: %w", err)
	}
	return nil
}

func (l *loader) report() Report {
	r := Report{
		Lines:    int(l.counts.lines.Load()),
		Loaded:   int(l.to.Acknowledged()),
		Rejected: int(l.counts.rejected.Load()),
		Bytes:    l.in.read.Load(),
		Elapsed:  time.Since(l.began),
		Faults:   l.faults,
	}
	if r.Rejected > 0 {
		r.RejectedFile = l.o.Rejected
	}
	return r
}
