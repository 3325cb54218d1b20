// Package kafka is the home of franz-go: what Millrace says to Kafka, it says
// here and in the rooms below, which DESIGN.md names. Here are how a Kafka is
// reached, Millrace's topics, a producer, and looks from outside; rooms consume
// the log of record (streams), work in a group and in transactions, and name one
// moment of the whole log (groups), and follow topics of small records (progress,
// schemalog, exposures).
//
// Which Kafka, and how it is reached, is [Brokers]: addresses, TLS and SASL in
// one value, which every verb takes.
//
// What it decides for everyone: reads are committed reads; a position that the
// log no longer has is an error and never a jump; a compressed batch is
// bounded before it is opened; acknowledgements come from all replicas.
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
	// maxFetchBytes is large because a fetch that is cut short makes kfake
	// leak aborted records.
	maxFetchBytes = 32 << 20
	// sparingFetchBytes is what a reader with [Sparing] asks of each broker at once, as
	// it is in the log: of clicks, which zstd makes ten times smaller, some 17,000.
	sparingFetchBytes = 256 << 10
	// MaxTimelineBatchBytes bounds what is sent to the timeline and features
	// topics at once: a body at its limit, with its key and headers, and room.
	MaxTimelineBatchBytes = 2 * millrace.MaxBodyBytes
	// maxDeadLetterBytes lets through whatever could be fetched.
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
// Where a consumer session ends before a fetch loop that was begun for it has
// joined it, franz-go 1.22.2 loses the start of the loop of the next one
// (source.loopFetch gives up by hardFinish without looking for a newer session),
// and reads nothing of that broker any more. A Resume, also of nothing, begins
// the loops that do not run. Partitions that are removed one by one end as many
// sessions: of 150,000 such ends three were lost.
const NudgeAfter = time.Second

// compressed is how batches of many records are compressed: a quarter smaller
// than by snappy, for half a microsecond a record more.
var compressed = kgo.ProducerBatchCompression(kgo.ZstdCompression().WithLevel(1), kgo.SnappyCompression(), kgo.NoCompression())

// ErrClosed says that the client was closed while in use.
var ErrClosed = errors.New("kafka: client closed")

// ErrLostPosition says that the log does not hold what comes next: the offset
// is out of range, the topic was created again, the log was truncated, or a
// batch is too large to open, or broken. Reading stays stopped there; going on needs a
// new position (for an index node: a bootstrap).
var ErrLostPosition = errors.New("kafka: position lost")

// The kinds of ErrLostPosition that do not pass by themselves. Each is one, too.
var (
	ErrCutLog        = fmt.Errorf("%w: the log was cut and has grown again", ErrLostPosition)
	ErrBatchTooLarge = fmt.Errorf("%w: a batch is too large to open", ErrLostPosition)
	ErrBatchBroken   = fmt.Errorf("%w: a batch is broken in the log", ErrLostPosition)
)

// clientID is how clients of Millrace name themselves to Kafka, members of groups with
// where their process is behind an @: Kafka itself tells no port of a member.
const clientID = "millrace"

// ClientAt is how a client names itself whose process is at an address.
func ClientAt(addr string) kgo.Opt { return kgo.ClientID(clientID + "@" + addr) }

// ClientOf reports whether a client is one of Millrace, and where its process is; "": it
// does not say.
func ClientOf(id string) (addr string, ours bool) {
	name, addr, _ := strings.Cut(id, "@")
	return addr, name == clientID
}

// Options are what every client shares, then more.
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

// Sparing bounds what is in memory of a topic of many small records that is read from
// end to end: of each broker two fetches, which are some 5 MB each once clicks
// are decompressed and made records, and more where they are smaller in the log.
func Sparing() []kgo.Opt {
	return []kgo.Opt{kgo.FetchMaxBytes(sparingFetchBytes), kgo.FetchMaxPartitionBytes(sparingFetchBytes)}
}

// Cancellable has what is written end with its context also where Kafka may have
// it already. Without it a record that was sent waits for as long as Kafka does not
// answer, and with it who wants to stop. It is for what may be written twice, and
// in no transaction.
func Cancellable() kgo.Opt { return kgo.AllowIdempotentProduceCancellation() }

// NewClient connects a client with these options. It is for the rooms below.
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

// Close ends a client that reads. A Kafka that is frozen is told so for a second:
// franz-go would wait for ten, in each client of a process that is to stop.
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

// WaitReady returns when a broker answers, or with ctx's end and the last
// failure. What [Refused] tells does not pass, and is returned at once.
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

// Answers returns an error where no broker answers for ten seconds, which names them:
// what asks more takes longer to notice.
func Answers(ctx context.Context, brokers Brokers) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	return WaitReady(ctx, brokers)
}

// WaitCoordinators returns when the coordinators of groups and of transactions
// answer, which a Kafka that has just started creates topics for, or with the
// last failure.
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

// Lost says whether err means that reading cannot go on from its position.
func Lost(err error) bool { return LostPosition(err) != nil }

// LostPosition returns which ErrLostPosition err means, or nil.
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

// Missing is the fault of a partition that an answer of Kafka lacks.
func Missing(ok bool) error {
	if ok {
		return nil
	}
	return errors.New("no such partition")
}

// logger hands franz-go's warnings and errors to slog; its chatter is dropped.
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
