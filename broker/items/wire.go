package items

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/fanout"
)

// The field numbers of feed.proto that are written here. An Also is a further record about
// the object of an item. It has the field numbers of an Item, except for its score.
const (
	responseItems protowire.Number = 1
	itemID        protowire.Number = 1
	itemEntity    protowire.Number = 2
	itemType      protowire.Number = 3
	itemTime      protowire.Number = 4
	itemObject    protowire.Number = 5
	itemScore     protowire.Number = 6
	itemRecord    protowire.Number = 7
	itemAlso      protowire.Number = 8
	itemExplain   protowire.Number = 9
	alsoScore     protowire.Number = 5
	timeSeconds   protowire.Number = 1
	timeNanos     protowire.Number = 2
)

// Append appends an item of an answer in protobuf's wire form. To make messages of items
// and their records would be half of the work of an answer, and most callers get bytes
// anyway. So the bytes become unknown fields of the response: protobuf writes these as
// they are, and whoever reads the response finds items. Where an answer does not go out
// as protobuf, [Read] makes messages of them. A record that cannot be decoded is logged
// and left out of its item.
func (b *Records) Append(ctx context.Context, dst []byte, fields *Fields, f *fanout.Asking, e *fanout.Entry) ([]byte, error) {
	start := len(dst)
	dst = appendText(appendPlace(dst, &e.Rank), itemObject, e.Item.GetObject())
	dst = appendScore(dst, itemScore, e.Score)
	at := len(dst)
	record, err := b.record(ctx, dst, fields, f, e)
	var refused *millrace.Error
	switch {
	case errors.As(err, &refused):
		return nil, err
	case err != nil: // the record is damaged; the rest of the item is right
		b.log.Error("a record could not be decoded", "node", e.From.Node, "err", err)
	default:
		dst = enclose(record, at, itemRecord)
	}
	for _, a := range e.Also {
		at, r := len(dst), fanout.RankOf(a.Item)
		dst = enclose(appendScore(appendPlace(dst, &r), alsoScore, r.Score), at, itemAlso)
	}
	if x := e.Item.GetExplain(); x != nil {
		at := len(dst)
		if dst, err = (proto.MarshalOptions{}).MarshalAppend(dst, x); err != nil {
			return nil, fmt.Errorf("broker: the account of an item: %w", err)
		}
		dst = enclose(dst, at, itemExplain)
	}
	return enclose(dst, start, responseItems), nil
}

// appendPlace appends the fields of a rank except the score.
func appendPlace(dst []byte, r *millrace.Rank) []byte {
	dst = appendText(appendText(appendText(dst, itemID, r.ID), itemEntity, r.Entity), itemType, r.Type)
	at, t := len(dst), r.Time.Std()
	dst = appendInt(appendInt(dst, timeSeconds, t.Unix()), timeNanos, int64(t.Nanosecond()))
	return enclose(dst, at, itemTime)
}

func appendScore(dst []byte, field protowire.Number, x float64) []byte {
	bits := math.Float64bits(x)
	if bits == 0 { // protobuf leaves out 0; minus zero has other bits, and is written
		return dst
	}
	return protowire.AppendFixed64(protowire.AppendTag(dst, field, protowire.Fixed64Type), bits)
}

func appendText[T ~string](dst []byte, field protowire.Number, s T) []byte {
	if s == "" {
		return dst
	}
	return protowire.AppendString(protowire.AppendTag(dst, field, protowire.BytesType), string(s))
}

func appendInt(dst []byte, field protowire.Number, n int64) []byte {
	if n == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), uint64(n))
}

// enclose makes dst[at:] the value of a field that is a message, by inserting its tag
// and its length.
func enclose(dst []byte, at int, field protowire.Number) []byte {
	var room [16]byte
	head := protowire.AppendVarint(protowire.AppendTag(room[:0], field, protowire.BytesType), uint64(len(dst)-at))
	return slices.Insert(dst, at, head...)
}

// Read turns the items that Append encoded into messages in resp.Items.
func Read(resp *feedv1.GetFeedResponse) error {
	m := resp.ProtoReflect()
	raw := m.GetUnknown()
	m.SetUnknown(nil)
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(raw, resp); err != nil {
		return fmt.Errorf("broker: items as encoded here: %w", err)
	}
	return nil
}
