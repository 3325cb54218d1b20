package broker

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// codec is gRPC's own, but that the entities of a feed request are pieces of
// one string instead of hundreds. Whether they are UTF-8 is left to
// [readEntities], which says which one is not.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	req, ok := v.(*feedv1.GetFeedRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return unmarshalRequest(b.ReadOnlyData(), req)
}

// entitiesField is the number of GetFeedRequest.entities.
const entitiesField = 3

// unmarshalRequest is proto.Unmarshal, but as codec says.
func unmarshalRequest(message []byte, req *feedv1.GetFeedRequest) error {
	n, others := 0, 0 // entities, and bytes of all else
	for at := 0; at < len(message); {
		entity, end, err := nextField(message, at)
		switch {
		case err != nil:
			return err
		case entity > 0:
			n++
		default:
			others += end - at
		}
		at = end
	}
	all := string(message)
	entities, rest := make([]string, 0, n), make([]byte, 0, others)
	for at := 0; at < len(message); {
		entity, end, _ := nextField(message, at)
		if entity > 0 {
			entities = append(entities, all[entity:end])
		} else {
			rest = append(rest, message[at:end]...)
		}
		at = end
	}
	if err := proto.Unmarshal(rest, req); err != nil {
		return err
	}
	if n > 0 {
		req.Entities = entities
	}
	return nil
}

// nextField returns where the field at a place ends, and where its value
// begins if it is an entity, else 0.
func nextField(message []byte, at int) (entity, end int, err error) {
	if at+1 < len(message) && message[at] == entitiesField<<3|2 && message[at+1] < 0x80 { // as most are
		if entity, end = at+2, at+2+int(message[at+1]); end <= len(message) {
			return entity, end, nil
		}
	}
	field, kind, tag := protowire.ConsumeTag(message[at:])
	if tag < 0 {
		return 0, 0, protowire.ParseError(tag)
	}
	size := protowire.ConsumeFieldValue(field, kind, message[at+tag:])
	if size < 0 {
		return 0, 0, protowire.ParseError(size)
	}
	end = at + tag + size
	if field == entitiesField && kind == protowire.BytesType {
		value, _ := protowire.ConsumeBytes(message[at+tag:])
		return end - len(value), end, nil
	}
	return 0, end, nil
}
