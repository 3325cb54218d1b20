package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/cluster"
)

// Reason is a stable word for why a replica is not ready, or what it waits
// for. The cluster, metrics and `millrace doctor` tell it.
type Reason string

// The reasons.
const (
	KafkaAway      Reason = "kafka_away"             // the end of the log could not be confirmed
	InputStalled   Reason = "input_stalled"          // partitioners have not brought what came in to the log
	Behind         Reason = "behind"                 // the log is read, and its end not reached
	SchemaUnknown  Reason = "schema_unknown"         // a record's schema has not come yet
	DiskFull       Reason = "disk_full"              // the store takes nothing in
	StoreFailing   Reason = "store_failing"          // the store cannot write or read now
	DeadLetters    Reason = "dead_letters"           // what was refused is not kept yet
	Corrupt        Reason = "corrupt"                // what is stored cannot be right
	Differs        Reason = "differs"                // it is not what its log makes of a replica: others are
	ByOperator     Reason = cluster.ByOperatorReason // an operator has quarantined it, until it is released
	Compared       Reason = "compared"               // it stands still for some seconds, to be compared with another
	Paused         Reason = cluster.PausedReason     // an operator has said that nothing is to be applied for a time
	LogBeginsLater Reason = "log_begins_later"       // the log no longer has what comes next
	OtherLog       Reason = "other_log"              // the log is not the one that was read
	LogShorter     Reason = "log_shorter"            // the log ends before what was read of it
	LogDeletes     Reason = "log_deletes"            // the topic deletes records, and no backup reaches as far
	BatchTooLarge  Reason = "batch_too_large"        // a batch of the log cannot be opened within bounds
	BackupAway     Reason = "backup_away"            // the place of the backups does not answer
	Restores       Reason = "restores"               // a backup is being brought back
	Warming        Reason = "warming"                // what peers hold hot is read into the cache
	LogTrimmed     Reason = "log_trimmed"            // of a ready one: the log no longer has its beginning, and no backup has it
	TooManyTypes   Reason = "too_many_types"         // of a node that answers: what asks for all content types is refused
	Moved          Reason = "moved"                  // assigned to other nodes
	Leaving        Reason = "leaving"                // of a node that is being stopped: it answers until brokers have heard
)

// Why says why a replica is in its state. The zero Why is no reason.
type Why struct {
	Reason Reason
	Detail string // for people
}

// Held says that a record cannot be applied here and now: nothing about the
// record's bytes, and nothing that another replica need share. It is tried
// again for as long as it takes. A record that is refused for what its bytes
// say is a *schemas.Error, and the same on every replica.
type Held struct {
	Reason Reason
	Err    error
}

// Error implements error.
func (h *Held) Error() string { return fmt.Sprintf("held back (%s): %v", h.Reason, h.Err) }

// Unwrap returns what is in the way.
func (h *Held) Unwrap() error { return h.Err }

func held(reason Reason, err error) *Held { return &Held{reason, err} }

// heldBy returns err as a Held; what is no Held yet is the store's failure.
func heldBy(err error) *Held {
	var h *Held
	if errors.As(err, &h) {
		return h
	}
	return held(StoreFailing, err)
}

// retryAfter is the pause before what is held back is tried again without a
// sign that it would go better.
const retryAfter = 500 * time.Millisecond
