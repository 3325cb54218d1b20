// Package nodewire is the codec of what brokers ask index nodes and of what
// these answer: protobuf, by hand where there is much of it. What
// [proto.Marshal] and [proto.Unmarshal] take for a question and its answer,
// mostly to follow pointers and to make a hundred small pieces of memory, is 5 %
// of the processor time of a query. Either end may as well speak with one
// that has protobuf's own codec.
package nodewire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Protocol is what this version's index nodes understand, and say in every
// answer. It rises with what a node must heed for its answer to be right:
//
//  1. QueryRequest.served_key
//  2. QueryRequest.weights
const Protocol = 2

// Codec returns the codec. It writes and reads what gRPC's own does. What it
// does not know by hand (accounts of a record, explanations, whatever newer
// ends may add) and what is no such message it leaves to protobuf, so that what
// protobuf refuses is refused.
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

// Unmarshal implements encoding.CodecV2. The items of an answer share memory
// of their own, and are kept or let go of together.
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

// unmarshalRequest is proto.Unmarshal.
func unmarshalRequest(b []byte, m *nodev1.QueryRequest) error {
	if proto.Reset(m); readRequest(b, m) {
		return nil
	}
	if err := bounded(b, m.ProtoReflect().Descriptor()); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// unmarshalResponse is proto.Unmarshal, but that the message shares the memory
// of b.
func unmarshalResponse(b []byte, m *nodev1.QueryResponse) error {
	if proto.Reset(m); readResponse(b, m) {
		return nil
	}
	return proto.Unmarshal(b, m)
}
