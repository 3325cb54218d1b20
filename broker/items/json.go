package items

import (
	"bytes"
	"encoding/json"
	"iter"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// MarshalJSON returns a message as JSON, with the field names of the .proto and with
// zeros. 64-bit integers are strings, as in all JSON of protobuf. The items that
// [Records.Append] encoded into a response are written from their wire form: as
// messages they would take many times as much memory.
func MarshalJSON(m proto.Message) ([]byte, error) {
	resp, ok := m.(*feedv1.GetFeedResponse)
	if !ok || len(resp.ProtoReflect().GetUnknown()) == 0 {
		return plainJSON(m)
	}
	rest, err := plainJSON(&feedv1.GetFeedResponse{
		NextPageToken: resp.NextPageToken, Coverage: resp.Coverage, Receipt: resp.Receipt, Explain: resp.Explain, Hints: resp.Hints,
	})
	if err != nil {
		return nil, err
	}
	text := append(make([]byte, 0, len(rest)+2*len(resp.ProtoReflect().GetUnknown())), noItems[:len(noItems)-1]...)
	for item := range encodedItems(resp) {
		if text, err = itemText.append(text, item); err != nil {
			return nil, err
		}
		text = append(text, ',')
	}
	text[len(text)-1] = ']'
	return append(text, bytes.TrimPrefix(rest, []byte(noItems))...), nil
}

// noItems is how the JSON of an answer without items begins.
const noItems = `{"items":[]`

// encodedItems yields the wire form of each item of an answer. They are its unknown
// fields, see [Records.Append].
func encodedItems(resp *feedv1.GetFeedResponse) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for b := []byte(resp.ProtoReflect().GetUnknown()); len(b) > 0; {
			_, _, tag := protowire.ConsumeTag(b)
			item, size := protowire.ConsumeBytes(b[tag:])
			if size < 0 || !yield(item) {
				return
			}
			b = b[tag+size:]
		}
	}
}

// CostOfJSON returns about how many bytes of memory MarshalJSON takes for an answer:
// its text, and the copies that are made as the text grows.
func CostOfJSON(resp *feedv1.GetFeedResponse) (bytes int64) {
	return 4 * int64(len(resp.ProtoReflect().GetUnknown()))
}

// plainJSON returns a message as JSON without spaces, by protojson.
func plainJSON(m proto.Message) ([]byte, error) {
	loose, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer // protojson varies its spaces on purpose
	err = json.Compact(&b, loose)
	return b.Bytes(), err
}
