package kafka

import (
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/millrace/millrace/internal/secure"
)

const MaxDeadLetterBytes = maxDeadLetterBytes

func OpenSASL(s SASL) (sasl.Mechanism, error) { return s.open(nil) }

func Plain(b Brokers) secure.Plain { return b.plain() }

// At returns the same letters of another Kafka.
func (l *DeadLetterLog) At(b Brokers) *DeadLetterLog {
	return &DeadLetterLog{l.First, l.End, b, l.topic}
}
