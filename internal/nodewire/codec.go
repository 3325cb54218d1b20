// Package nodewire is what index nodes and those who ask them agree on beside
// the protocol: which version of it a node understands, how much a question may
// be, and what a viewer is.
package nodewire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Protocol is what this version's index nodes understand, and say in every
// answer. It rises with what a node must heed for its answer to be right:
//
//  1. QueryRequest.served_key
//  2. QueryRequest.weights
const Protocol = 2

// Codec returns the codec of index nodes: gRPC's own, but that it refuses a
// question, before it is parsed, which would take far more memory than bytes.
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
