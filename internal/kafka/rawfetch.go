package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// RawFetch asks for the bytes that a partition has from an offset on, as they are in the
// log.
type RawFetch struct {
	Topic     string
	Partition int32
	At        int64
	MaxBytes  int32 // of the answer; the first batch comes whole, however large it is
	Committed bool  // leave out what open transactions hide
}

// Do asks the leader of the partition. If the log does not have the offset, the error is an
// [ErrLostPosition].
func (f RawFetch) Do(ctx context.Context, cl *kgo.Client) (*kmsg.FetchResponseTopicPartition, error) {
	t, leader, err := f.look(ctx, cl)
	if err != nil {
		return nil, err
	}
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = f.Partition, f.At, f.MaxBytes
	t.Partitions = []kmsg.FetchRequestTopicPartition{p}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = int32(FetchWait.Milliseconds()), 1, f.MaxBytes, -1
	if f.Committed {
		req.IsolationLevel = 1
	}
	req.Topics = append(req.Topics, t)
	answer, err := Ask(ctx, func() (kmsg.Response, error) { return cl.Broker(int(leader)).Request(ctx, req) })
	if err != nil {
		return nil, err
	}
	resp := answer.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errors.New("the broker's answer is of another partition")
	}
	got := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
		if Lost(err) {
			err = fmt.Errorf("%w: %w", ErrLostPosition, err)
		}
		return nil, err
	}
	return got, nil
}

// look returns the topic's name and id, and which broker leads the partition.
func (f RawFetch) look(ctx context.Context, cl *kgo.Client) (kmsg.FetchRequestTopic, int32, error) {
	t := kmsg.NewFetchRequestTopic()
	meta := kmsg.NewPtrMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &f.Topic
	meta.Topics = append(meta.Topics, asked)
	known, err := Ask(ctx, func() (*kmsg.MetadataResponse, error) { return meta.RequestWith(ctx, cl) })
	if err != nil {
		return t, 0, err
	}
	t.Topic, t.TopicID = f.Topic, known.Topics[0].TopicID
	for _, p := range known.Topics[0].Partitions {
		if p.Partition == f.Partition && p.Leader >= 0 {
			return t, p.Leader, nil
		}
	}
	return t, 0, errors.Join(kerr.LeaderNotAvailable, kerr.ErrorForCode(known.Topics[0].ErrorCode))
}
