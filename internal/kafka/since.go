package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// Kafka counts milliseconds from 1970, and reads a time before as one of its special
// offsets: -1 is the end of a log. No record is of before, so that is the beginning.

func millisOf(t millrace.Time) int64 { return max(0, int64(t)) }

// ListSince returns, for each partition of topics, the offset of the first record that
// was logged at a time or later; the end where there is none.
func ListSince(ctx context.Context, adm *kadm.Client, t millrace.Time, topics ...string) (kadm.ListedOffsets, error) {
	return adm.ListOffsetsAfterMilli(ctx, millisOf(t), topics...)
}

// Since is where a client begins to read what was logged at a time or later.
func Since(t millrace.Time) kgo.Offset { return kgo.NewOffset().AfterMilli(millisOf(t)) }
