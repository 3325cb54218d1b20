// Package nodewire is the codec for the requests of brokers to index nodes and for the answers
// of these. Both are protobuf messages. The parts that make up most of a message are encoded
// and decoded by hand-written code, since [proto.Marshal] and [proto.Unmarshal] would take 5 %
// of the CPU time of a query, mostly to follow pointers and to allocate a hundred small pieces of
// memory. The bytes are those of protobuf, so either end can speak with a peer that has
// protobuf's own codec.
package nodewire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Protocol is the version of the protocol that the index nodes of this release understand. They
// send it in every answer. It rises by one with each field of a request that a node must
// understand for its answer to be right. The fields of each version are:
//
//  1. QueryRequest.served_key
//  2. QueryRequest.weights
const Protocol = 2

// Codec returns the codec. It writes and reads the same bytes as gRPC's own codec. It leaves
// to protobuf every other message, and every message with a field that the hand-written code
// does not handle (accounts of a record, explanations, fields that newer releases may add). So
// what protobuf refuses is refused.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	var w writer
	pool := mem.DefaultBufferPool()
	switch m := v.(type) {
	case *nodev1.QueryRequest:
		w.b = (*pool.Get(requestRoom(m)))[:0]
		w.request(m)
	case *nodev1.QueryResponse:
		w.b = (*pool.Get(int(Size(m))))[:0]
		w.response(m)
	default:
		return c.CodecV2.Marshal(v)
	}
	if w.stuck {
		pool.Put(&w.b)
		return c.CodecV2.Marshal(v)
	}
	return mem.BufferSlice{mem.NewBuffer(&w.b, pool)}, nil
}

// Unmarshal implements encoding.CodecV2. The items of an answer share one piece of memory, so
// it is freed only when nothing refers to any of them.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *nodev1.QueryRequest:
		b := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer b.Free()
		return unmarshalRequest(b.ReadOnlyData(), m)
	case *nodev1.QueryResponse:
		return unmarshalResponse(data.Materialize(), m)
	}
	return c.CodecV2.Unmarshal(data, v)
}

// unmarshalRequest does what proto.Unmarshal does, and refuses a request with too many values.
func unmarshalRequest(b []byte, m *nodev1.QueryRequest) error {
	if proto.Reset(m); readRequest(b, m) {
		return nil
	}
	if err := bounded(b, m.ProtoReflect().Descriptor()); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// unmarshalResponse does what proto.Unmarshal does, except that the message may share the
// memory of b.
func unmarshalResponse(b []byte, m *nodev1.QueryResponse) error {
	if proto.Reset(m); readResponse(b, m) {
		return nil
	}
	return proto.Unmarshal(b, m)
}
