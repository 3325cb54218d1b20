package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/schemas"
)

const (
	// maxLetters is how many dead letters one call replays at most. A dead letter is a record
	// that a partitioner or a node has refused.
	maxLetters = 1000
	// maxLetterBytes bounds the bytes of all of them together.
	maxLetterBytes = 64 << 20
	// nearBy is the largest distance between the offsets of two neighbouring letters that are
	// read in one pass over the topic. Such a pass also reads all letters between them.
	nearBy = 1000
)

// ReplayDeadLetters implements nodev1.AdminServiceServer.
func (s *Server) ReplayDeadLetters(ctx context.Context, req *nodev1.ReplayDeadLettersRequest) (*nodev1.ReplayDeadLettersResponse, error) {
	resp, err := s.replay(ctx, req)
	return resp, rpcerr.Status(err)
}

func (s *Server) replay(ctx context.Context, req *nodev1.ReplayDeadLettersRequest) (*nodev1.ReplayDeadLettersResponse, error) {
	if n := len(req.Offsets); n == 0 || n > maxLetters {
		return nil, millrace.Invalid("OFFSET", fmt.Sprintf("%d dead letters are named", n), fmt.Sprintf("name 1 to %d; millrace deadletters list shows their offsets", maxLetters))
	}
	reading, done, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	letters, err := s.letters(reading, req.Offsets)
	if err != nil {
		return nil, err
	}
	to, err := s.inputs(reading)
	if err != nil {
		return nil, err
	}
	resp := &nodev1.ReplayDeadLettersResponse{}
	for _, d := range letters {
		l := &nodev1.ReplayedLetter{Offset: int64(d.Offset), Source: d.Source, Reason: d.Reason}
		if err := s.judge(d, l, to, req.Topic); err != nil {
			l.Refused = err.Error()
		}
		resp.Letters = append(resp.Letters, l)
	}
	if !req.Apply {
		return resp, nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxTime) // not by reading: once letters are being written, a stop of the node does not end that
	defer cancel()
	return resp, s.writeAgain(ctx, letters, resp.Letters)
}

// letters returns the dead letters at the offsets, each once, in the order of offsets. It is
// an error if one is not there.
func (s *Server) letters(ctx context.Context, offsets []int64) (all []kafka.DeadLetter, err error) {
	log, err := kafka.OpenDeadLetters(ctx, s.cfg.Brokers, s.cfg.Topics.DeadLetters)
	if err != nil {
		return nil, err
	}
	offsets = slices.Compact(slices.Sorted(slices.Values(offsets)))
	if first, last := millrace.Offset(offsets[0]), millrace.Offset(offsets[len(offsets)-1]); first < log.First || last >= log.End {
		return nil, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "OFFSET", Detail: fmt.Sprintf("no dead letter has the offset %d or %d", first, last), WayOut: fmt.Sprintf("millrace deadletters list names those that there are, from %d to %d", log.First, log.End-1)}
	}
	size := 0
	for begin := 0; begin < len(offsets); {
		end := begin + 1
		for end < len(offsets) && offsets[end]-offsets[end-1] <= nearBy {
			end++
		}
		run := offsets[begin:end]
		if err := log.Read(ctx, millrace.Offset(run[0]), millrace.Offset(run[len(run)-1])+1, func(d kafka.DeadLetter) {
			if _, ok := slices.BinarySearch(run, int64(d.Offset)); ok && size <= maxLetterBytes {
				all, size = append(all, d), size+len(d.Value)
			}
		}); err != nil {
			return nil, err
		}
		begin = end
	}
	if size > maxLetterBytes {
		return nil, &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "OFFSET", Detail: fmt.Sprintf("the dead letters have more than %d bytes together", maxLetterBytes), WayOut: "replay fewer at a time"}
	}
	if len(all) < len(offsets) {
		return nil, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "OFFSET", Detail: fmt.Sprintf("of %d dead letters that are named there are %d", len(offsets), len(all)), WayOut: "millrace deadletters list names those that there are"}
	}
	return all, nil
}

// judge puts into l where the letter d would be written, or returns why it would be refused
// again. to are the topics that partitioners read. named is the topic that the operator names.
// If it is "", the letter goes to the topic that it came from, or if no partitioner reads
// that one, to the only topic of its kind. A letter that names its schema by the id of a
// schema registry cannot be checked here: l.Unjudged says so.
func (s *Server) judge(d kafka.DeadLetter, l *nodev1.ReplayedLetter, to inputs, named string) error {
	if d.Batch != "" {
		return millrace.Invalid("OFFSET", "it is a piece of a batch that could not be opened", "millrace deadletters show OFFSET --raw writes the piece, for who knows what it was")
	}
	framed, err := schemas.Unframe(d.Value)
	if err != nil {
		return err
	}
	from, err := kafka.ParseSource([]byte(d.Source))
	if err != nil {
		return err
	}
	if named == "" && to[from.Topic] != (inputTopic{}) {
		named = from.Topic
	}
	if framed.Confluent {
		if at := to[named]; at == (inputTopic{}) {
			return millrace.Invalid("topic", fmt.Sprintf("no partitioner reads %.70q", named), "name a topic that one reads")
		}
		l.Topic, l.Unjudged = named, true
		return nil
	}
	writer := s.cfg.Schemas.Snapshot().ByFingerprint(framed.Fingerprint)
	if writer == nil {
		return &schemas.Error{Reason: schemas.UnknownSchema, Detail: fmt.Sprintf("schema %s is not known yet", framed.Fingerprint)}
	}
	kind := progress.ContentTopic
	if writer.Features() {
		kind = progress.FeatureTopic
	}
	topic, future, err := to.of(kind, named)
	if err != nil {
		return err
	}
	env, err := writer.Accept(framed.Body, millrace.TimeOf(time.Now()), future)
	if err != nil {
		return err
	}
	l.Topic, l.Id, l.Entity = topic, string(env.Record.ID), string(env.Entity)
	return nil
}

// writeAgain writes the letters that judge has not refused to their topics, each as an act of
// its own. judged are in the order of letters.
func (s *Server) writeAgain(ctx context.Context, letters []kafka.DeadLetter, judged []*nodev1.ReplayedLetter) error {
	p, err := kafka.NewProducer(s.cfg.Brokers, "", s.cfg.Log)
	if err != nil {
		return err
	}
	defer p.Close()
	partitions := map[string]int32{}
	for i, l := range judged {
		if l.Topic == "" {
			continue
		}
		if partitions[l.Topic] == 0 {
			if partitions[l.Topic], err = kafka.Partitions(ctx, s.cfg.Brokers, l.Topic); err != nil {
				return err
			}
		}
		act := s.act(ctx, "replay", fmt.Sprintf("dead letter %d, of %s", l.Offset, l.Source), "refused: "+l.Reason, "written again to topic "+l.Topic)
		if err := s.do(act, func() error {
			p.Produce(ctx, kafka.Outgoing{
				Topic: l.Topic, Partition: int32(partition.Hash(millrace.Entity(letters[i].Key)) % uint64(partitions[l.Topic])), Key: letters[i].Key, Value: letters[i].Value,
			})
			return p.Flush(ctx)
		}); err != nil {
			return err
		}
	}
	return nil
}
