// Package load brings NDJSON files into a content topic: every line is checked
// against a schema, encoded as single-object Avro and produced. A line that
// does not fit is written aside with its number and field, and stops nothing.
package load

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// Options says what to load where.
type Options struct {
	Brokers    []string
	Topic      string          // the content or feature topic
	Partitions int32           // of the topic, if it has to be created; 0 = 4
	Topics     kafka.Topics    // Millrace's own topics; only Schemas is used
	Schema     *schemas.Schema // what every line must fit
	File       string          // NDJSON; a name that ends in .zst is decompressed
	Rejected   string          // where rejected lines go; empty = FILE.rejected.ndjson
	Progress   io.Writer       // nil = none; a terminal gets a bar, anything else a line a second
	Log        *slog.Logger    // nil = silent
}

// Report tells how a load went. Lines = Loaded + Rejected; blank lines do not
// count.
type Report struct {
	Lines    int
	Loaded   int
	Rejected int
	Bytes    int64 // of the file, compressed as it is
	Elapsed  time.Duration
	// Faults are the first rejected lines, at most 100: line 17: field "likes": ...
	Faults []LineFault
	// RejectedFile holds the rejected lines as they were; empty if there are none.
	RejectedFile string
}

// LineFault is why a line was rejected.
type LineFault struct {
	Line int // from 1
	Err  error
}

// Run loads a file. The error is of the file or of Kafka, never of a line;
// what the Report counts as loaded has been acknowledged.
func Run(ctx context.Context, o Options) (Report, error) {
	return Report{}, errors.New("load: not written yet")
}
