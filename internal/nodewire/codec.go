// Package nodewire has what index nodes and their callers agree on beside the messages of the
// protocol: which version of the protocol a node understands, how large a question may be, and
// what the attributes of a viewer may be.
package nodewire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Protocol is the version of the protocol that index nodes of this binary understand. They send
// it in every answer. It rises with each field that a node must understand for its answer to be
// right:
//
//  1. QueryRequest.served_key
//  2. QueryRequest.weights
const Protocol = 2

// Codec returns the codec of index nodes. It is gRPC's own, and also refuses a question, before
// it is parsed, that would take far more memory than it has bytes.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*nodev1.QueryRequest); ok && data.Len() >= leastBytes*maxValues {
		if err := bounded(data.Materialize(), m.ProtoReflect().Descriptor()); err != nil {
			return err
		}
	}
	return c.CodecV2.Unmarshal(data, v)
}
