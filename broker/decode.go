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

var entitiesField = (&feedv1.GetFeedRequest{}).ProtoReflect().Descriptor().Fields().ByName("entities").Number()

// unmarshalRequest is proto.Unmarshal, but as codec says.
func unmarshalRequest(message []byte, req *feedv1.GetFeedRequest) error {
	all := string(message)
	var rest []byte
	entities := make([]string, 0, countEntities(message))
	for at := 0; at < len(message); {
		field, kind, tag := protowire.ConsumeTag(message[at:])
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(field, kind, message[at+tag:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		end := at + tag + size
		if field == entitiesField && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[at+tag:])
			entities = append(entities, all[end-len(value):end])
		} else {
			rest = append(rest, message[at:end]...)
		}
		at = end
	}
	if err := proto.Unmarshal(rest, req); err != nil {
		return err
	}
	if len(entities) > 0 {
		req.Entities = entities
	}
	return nil
}

// countEntities returns how many entities a message has, up to its first
// fault.
func countEntities(message []byte) (n int) {
	for len(message) > 0 {
		field, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return n
		}
		size := protowire.ConsumeFieldValue(field, kind, message[tag:])
		if size < 0 {
			return n
		}
		if field == entitiesField {
			n++
		}
		message = message[tag+size:]
	}
	return n
}
