package broker

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

var recordField = (&feedv1.Item{}).ProtoReflect().Descriptor().Fields().ByName("record").Number()

// setRecord gives an item its record as protobuf writes one. Making a Struct
// of it would be half of the work of a request, and most callers get bytes
// anyway. So it stands among the item's unknown fields, which protobuf writes
// as they are and readers take for what they say; [readRecords] makes a Struct
// of it where the answer does not go out as protobuf.
func setRecord(it *feedv1.Item, record []byte) {
	raw := make([]byte, 0, protowire.SizeTag(recordField)+protowire.SizeBytes(len(record)))
	it.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(raw, recordField, protowire.BytesType), record))
}

// readRecords moves the records of an answer to where they belong.
func readRecords(resp *feedv1.GetFeedResponse) error {
	for _, it := range resp.Items {
		m := it.ProtoReflect()
		raw := m.GetUnknown()
		m.SetUnknown(nil)
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(raw, it); err != nil {
			return fmt.Errorf("broker: a record as encoded here: %w", err)
		}
	}
	return nil
}
