package admin

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/kafka"
)

// What is read of a Kafka that is frozen ends, and says so.
func TestKafkaThatIsSilent(t *testing.T) {
	t.Parallel()
	frozen, err := net.Listen("tcp", "127.0.0.1:0") // connections wait to be accepted
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	s, _ := openNode(t)
	s.cfg.Brokers, s.cfg.Topics = kafka.At(frozen.Addr().String()), kafka.Prefixed("")
	s.kafkaWait = 10 * time.Millisecond
	for name, call := range map[string]func() error{
		"dead letters": func() error {
			_, err := s.countDeadLetters(t.Context(), &nodev1.CountDeadLettersRequest{})
			return err
		},
		"history": func() error {
			return s.readHistory(&nodev1.ReadHistoryRequest{Entity: "member:1"}, nowhere{ctx: t.Context()})
		},
	} {
		if e := (*millrace.Error)(nil); !errors.As(call(), &e) || e.Reason != millrace.ReasonUnavailable || e.Field != "kafka" {
			t.Errorf("%s: %v", name, e)
		}
	}
}

// nowhere is a stream that nobody reads.
type nowhere struct {
	grpc.ServerStream
	ctx context.Context
}

func (n nowhere) Context() context.Context             { return n.ctx }
func (nowhere) Send(*nodev1.ReadHistoryResponse) error { return nil }
