// Package kafka has everything that Millrace says to Kafka, by the client franz-go. This
// package has how a Kafka is reached, Millrace's topics, a producer, and looks at topics
// and groups from outside. The packages below it do the rest. They read the log of record
// (streams); they work in a consumer group and in transactions, and find one moment of the
// whole log (groups); and they follow topics of small records (progress, schemalog,
// exposures).
//
// The log of record is the topics timeline and features: partitioners write their inputs to
// it, and index nodes are built from it. A record that a partitioner or an index node
// refuses becomes a dead letter, in a topic of its own.
//
// [Brokers] says which Kafka is meant, and how it is reached: addresses, TLS and SASL in
// one value.
//
// The package decides for all of them: reads are committed reads, which leave out aborted
// transactions and end at the first open one; a position that the log no longer has is an
// error, and no reader jumps over it; a compressed batch is bounded before it is opened;
// acknowledgements come from all replicas.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka/patience"
)

const (
	// MaxBatchBytes bounds a fetched batch once it is decompressed; a larger
	// one stops its partition (ErrLostPosition), or is passed over ([StepOver], [Steps]),
	// instead of filling memory.
	MaxBatchBytes = 64 << 20
	// maxFetchBytes is large because kfake, the Kafka of tests, returns aborted records
	// when a fetch is cut short.
	maxFetchBytes = 32 << 20
	// sparingFetchBytes is what a reader with [Sparing] asks of each broker at once, in
	// bytes of the log. That is some 17,000 clicks, which zstd makes ten times smaller.
	sparingFetchBytes = 256 << 10
	// MaxTimelineBatchBytes bounds what is sent to the timeline and features topics at
	// once. It has room for the largest body with its key and headers.
	MaxTimelineBatchBytes = 2 * millrace.MaxBodyBytes
	// maxDeadLetterBytes bounds a batch of dead letters. It has room for whatever could
	// be fetched, of at most MaxBatchBytes.
	maxDeadLetterBytes = MaxBatchBytes + 1<<20
	// FetchWait is how long a broker may hold a fetch without data. A partition
	// newly added to a quiet consumer waits that long.
	FetchWait = 250 * time.Millisecond
)

// TransactionTimeout is how long an open transaction may outlive its producer:
// until then no reader gets past it. A successor under the same instance name
// ends it at once.
const TransactionTimeout = 10 * time.Second

// NudgeAfter is how long a poll waits before it has franz-go look whether it reads.
// If a consumer session ends before a fetch loop that was started for it has joined
// it, franz-go 1.22.2 does not start the loop of the next session (source.loopFetch
// gives up by hardFinish without looking for a newer session). It then reads nothing
// more of that broker. A Resume, even of no partition, starts the loops that do not
// run. Each removal of a partition ends a session; of 150,000 such ends, three left a
// loop that did not run.
const NudgeAfter = time.Second

// compressed is the compression of batches of many records. They are a quarter smaller
// than by snappy, for half a microsecond more a record.
var compressed = kgo.ProducerBatchCompression(kgo.ZstdCompression().WithLevel(1), kgo.SnappyCompression(), kgo.NoCompression())

// ErrClosed says that a client was closed while it was in use.
var ErrClosed = errors.New("kafka: client closed")

// ErrLostPosition says that a reader cannot go on from its position: the offset is out of
// range, the topic was created again, the log was truncated, or the next batch is too
// large to open, or broken. The reader stays stopped there until it gets a new position
// (an index node: until its replica is made anew).
var ErrLostPosition = errors.New("kafka: position lost")

// The kinds of ErrLostPosition that do not pass by themselves. [errors.Is] finds
// ErrLostPosition in each.
var (
	ErrCutLog        = fmt.Errorf("%w: the log was cut and has grown again", ErrLostPosition)
	ErrBatchTooLarge = fmt.Errorf("%w: a batch is too large to open", ErrLostPosition)
	ErrBatchBroken   = fmt.Errorf("%w: a batch is broken in the log", ErrLostPosition)
)

// clientID is the client id of Millrace's clients at Kafka. Members of groups add an @
// and the address of their process, since Kafka itself knows no port of a member.
const clientID = "millrace"

// ClientAt returns the option that names a client whose process is at an address.
func ClientAt(addr string) kgo.Opt { return kgo.ClientID(clientID + "@" + addr) }

// ClientOf reports whether a client id is of Millrace, and returns the address of the
// client's process; "": the id does not say.
func ClientOf(id string) (addr string, ours bool) {
	name, addr, _ := strings.Cut(id, "@")
	return addr, name == clientID
}

// Options returns the options that every client shares, followed by more. A nil log drops
// what franz-go logs.
func Options(brokers Brokers, log *slog.Logger, more ...kgo.Opt) ([]kgo.Opt, error) {
	reached, err := brokers.options()
	if err != nil {
		return nil, err
	}
	return append(append(reached,
		kgo.ClientID(clientID),
		kgo.WithLogger(logger{log}),
		kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxBytes(maxFetchBytes),
		kgo.FetchMaxPartitionBytes(maxFetchBytes),
		kgo.FetchMaxWait(FetchWait),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.MaxDecompressBatchBytes(MaxBatchBytes),
		kgo.ProducerLinger(0),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// Batches over 720 partitions are small, and an lz4 frame takes buffers
		// of 4 MiB however little is in it.
		kgo.ProducerBatchCompression(kgo.SnappyCompression(), kgo.NoCompression()),
	), more...), nil
}

// Sparing returns options for a client that reads a topic of many small records from end
// to end. They bound what is in memory: two fetches of each broker. A fetch of clicks
// takes some 5 MB once it is decompressed and made records, and more if the records are
// compressed better.
func Sparing() []kgo.Opt {
	return []kgo.Opt{kgo.FetchMaxBytes(sparingFetchBytes), kgo.FetchMaxPartitionBytes(sparingFetchBytes)}
}

// Cancellable returns the option by which producing a record ends with its context, even
// if Kafka may have the record already. Without it, a producer that wants to stop waits
// for a record that was sent for as long as Kafka does not answer. It is for records that
// may be written twice, and not for transactions.
func Cancellable() kgo.Opt { return kgo.AllowIdempotentProduceCancellation() }

// NewClient returns a client with the common Options and more. Only the packages below
// this one should use it.
func NewClient(brokers Brokers, log *slog.Logger, more ...kgo.Opt) (*kgo.Client, error) {
	opts, err := Options(brokers, log, more...)
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return cl, nil
}

// Close closes a client that reads, and waits for that for at most a second. With a Kafka
// that does not answer, franz-go would wait for ten, in each client of a process that is
// to stop.
func Close(cl *kgo.Client) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		cl.Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// WaitReady returns nil when a broker answers, or the last failure when ctx ends. A
// refusal (see [Refused]) does not pass, and is returned at once.
func WaitReady(ctx context.Context, brokers Brokers) error {
	cl, err := NewClient(brokers, nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err = cl.Ping(try)
		cancel()
		if err == nil {
			return nil
		}
		if refused := Refused(err); refused != nil {
			return refused
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kafka: no answer from %v: %w", brokers, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Answers returns an error, which names the brokers, if none of them answers for ten
// seconds. Other requests take longer to notice that.
func Answers(ctx context.Context, brokers Brokers) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	return WaitReady(ctx, brokers)
}

// WaitCoordinators returns nil when the coordinators of groups and of transactions
// answer, or the last failure when ctx ends. A Kafka that has just started first creates
// topics for them.
func WaitCoordinators(ctx context.Context, brokers Brokers) error {
	cl, err := NewClient(brokers, nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for {
		_, groups := adm.FetchOffsets(ctx, "millrace-ready")
		if errors.Is(groups, kerr.GroupIDNotFound) {
			groups = nil
		}
		all, transactions := adm.DescribeTransactions(ctx, "millrace-ready")
		for _, t := range all {
			if t.Err != nil && !errors.Is(t.Err, kerr.TransactionalIDNotFound) {
				transactions = t.Err
			}
		}
		if err = errors.Join(groups, transactions); err == nil {
			return nil
		}
		if patience.Sleep(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("kafka: no answer of the coordinators from %v: %w", brokers, err)
		}
	}
}

// Lost reports whether an error of franz-go or Kafka means that reading cannot go on from
// its position.
func Lost(err error) bool { return LostPosition(err) != nil }

// LostPosition returns the ErrLostPosition that an error of franz-go or Kafka means, or
// the kind of it; nil if it means none.
func LostPosition(err error) error {
	var loss *kgo.ErrDataLoss
	var bomb *kgo.ErrDecompressTooLarge
	switch {
	case errors.As(err, &loss):
		return ErrCutLog
	case errors.As(err, &bomb):
		return ErrBatchTooLarge
	case errors.Is(err, kerr.OffsetOutOfRange), errors.Is(err, kerr.UnknownTopicID):
		return ErrLostPosition
	}
	return nil
}

// Missing returns the error of a partition that an answer of Kafka lacks; nil if ok.
func Missing(ok bool) error {
	if ok {
		return nil
	}
	return errors.New("no such partition")
}

// logger hands franz-go's warnings and errors to slog, and drops the rest. With a nil log
// it drops everything.
type logger struct{ log *slog.Logger }

func (l logger) Level() kgo.LogLevel {
	if l.log == nil {
		return kgo.LogLevelNone
	}
	return kgo.LogLevelWarn
}

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	if l.log == nil {
		return
	}
	if level == kgo.LogLevelError {
		l.log.Error("kafka: "+msg, keyvals...)
		return
	}
	l.log.Warn("kafka: "+msg, keyvals...)
}
