package groups

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// This file is how a Session makes sure that it reads and writes the logs that it began
// with. A log is a topic with the id that Kafka gave it: a topic that is deleted and
// created again is another log.

// begin notes which logs are there. It returns an *OtherLog if the group has written to other
// outputs.
func (s *Session) begin(ctx context.Context) error {
	now, err := logsNow(ctx, s.ask, slices.Concat(s.cfg.Topics, s.cfg.Outputs))
	if err != nil {
		return err
	}
	committed, err := groupOffsets(ctx, kadm.NewClient(s.ask), s.group)
	if err != nil {
		return err
	}
	s.word.mu.Lock()
	if s.word.mu.logs.ids == nil {
		s.word.mu.logs = now
	}
	s.word.mu.Unlock()
	return sameOutputs(s.group, committed, s.cfg.Topics, now, s.cfg.Logs)
}

// Same returns an ErrMoved if a log is not what it was when the session began.
// It may be called at any time.
func (s *Session) Same(ctx context.Context) error {
	s.word.mu.Lock()
	began := s.word.mu.logs
	s.word.mu.Unlock()
	now, err := logsNow(ctx, s.ask, slices.Concat(s.cfg.Topics, s.cfg.Outputs))
	if err != nil {
		return err
	}
	for topic, was := range began.ids {
		if is := now.ids[topic]; is != was {
			return fmt.Errorf("%w: %s was %s, and is %s", ErrMoved, topic, was, is)
		}
	}
	if began.cluster != now.cluster {
		return fmt.Errorf("%w: Kafka cluster %q was %q", ErrMoved, now.cluster, began.cluster)
	}
	return nil
}

// origin returns what is noted with an offset of a topic.
func (s *Session) origin(topic string) *string {
	s.word.mu.Lock()
	defer s.word.mu.Unlock()
	l := s.word.mu.logs
	o := origin{l.cluster, l.ids[topic], map[string]kafka.TopicID{}}
	for _, output := range s.cfg.Logs {
		o.Outputs[output] = l.ids[output]
	}
	text := o.encode()
	return &text
}

// judgeInputs is called before partitions that the group assigned to this member are read. It
// pauses those whose offset is of another log, and has Poll return a fault for each.
func (s *Session) judgeInputs(ctx context.Context, at map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	topics := make([]string, 0, len(at))
	for topic := range at {
		topics = append(topics, topic)
	}
	now, err := logsNow(ctx, s.ask, topics)
	if err != nil {
		return nil, err
	}
	committed, err := groupOffsets(ctx, kadm.NewClient(s.ask), s.group)
	if err != nil {
		return nil, err
	}
	other, same := map[string][]int32{}, map[string][]int32{}
	starts := map[topicPartition]int64{}
	var found []*Unreadable
	for topic, partitions := range at {
		for p, from := range partitions {
			c, has := committed.Lookup(topic, p)
			if !foreign(c, has && c.At >= 0, s.known(topic), now.ids[topic]) {
				same[topic] = append(same[topic], p)
				starts[topicPartition{topic, p}] = from.EpochOffset().Offset
				continue
			}
			other[topic] = append(other[topic], p)
			found = append(found, &Unreadable{Topic: topic, Partition: p, Kind: progress.Recreated, from: millrace.Offset(max(c.At, 0)), Err: errRecreated})
		}
	}
	s.word.judged(now, found, starts)
	s.word.mu.Lock()
	member := s.word.mu.member
	s.word.mu.Unlock()
	member.ResumeFetchPartitions(same)
	member.PauseFetchPartitions(other)
	return at, nil
}

// known returns the id that a topic had when the group read it last; the zero value if it is
// not known.
func (s *Session) known(topic string) (id kafka.TopicID) {
	if s.cfg.Known != nil {
		id = s.cfg.Known(topic)
	}
	return id
}

// judged takes over what judgeInputs found. The id of a topic that the session has noted
// before stays, so that Same finds the difference.
func (w *groupWord) judged(now logs, found []*Unreadable, starts map[topicPartition]int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.Copy(w.mu.starts, starts)
	ids := maps.Clone(now.ids)
	maps.Copy(ids, w.mu.logs.ids)
	w.mu.logs.ids = ids
	w.mu.found = append(w.mu.found, found...)
	if len(found) > 0 {
		w.mu.wake()
	}
}

// found returns what judgeInputs has found and Poll has not returned yet. It also notes
// wake, by which judged ends the poll that begins now.
func (s *Session) found(wake context.CancelFunc) (faults []error) {
	s.word.mu.Lock()
	defer s.word.mu.Unlock()
	for _, u := range s.word.mu.found {
		faults = append(faults, u)
	}
	s.word.mu.found, s.word.mu.wake = nil, wake
	return faults
}
