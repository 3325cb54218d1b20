package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Closed is a batch that is too large to open, and was stepped over.
type Closed struct {
	Topic       string
	Partition   int32
	First, Next int64 // offsets: of its first entry, and behind its last
}

func (c *Closed) Error() string {
	return fmt.Sprintf("kafka: the batch of %s/%d from offset %d to %d is of more than %d bytes once it is decompressed", c.Topic, c.Partition, c.First, c.Next-1, MaxBatchBytes)
}

// StepOver has a client that polled this go on behind batches that are too large to
// open, and returns them, and what else failed first. It is for readers of topics where
// an entry that is of no use stops nothing; partitioners and index nodes stop there.
func StepOver(cl *kgo.Client, fetches kgo.Fetches) (over []*Closed, failed error) {
	to := map[string]map[int32]kgo.EpochOffset{}
	for _, f := range fetches.Errors() {
		bomb, ok := errors.AsType[*kgo.ErrDecompressTooLarge](f.Err)
		if !ok {
			if failed == nil {
				failed = f.Err
			}
			continue
		}
		if to[f.Topic] == nil {
			to[f.Topic] = map[int32]kgo.EpochOffset{}
		}
		to[f.Topic][f.Partition] = kgo.EpochOffset{Epoch: bomb.Epoch, Offset: bomb.NextOffset}
		over = append(over, &Closed{f.Topic, f.Partition, bomb.Offset, bomb.NextOffset})
	}
	cl.SetOffsets(to) // of nothing it does nothing
	return over, failed
}
