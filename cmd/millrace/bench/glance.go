package bench

import (
	"errors"
	"fmt"
	"hash/maphash"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// glance is what the timed client reads of an answer: enough to tell whether it is the
// right one, without decoding it. The client stands for many callers, which decode their
// answers on machines of their own; their CPU time must not be measured.
type glance struct {
	items   uint64 // a hash of all items, byte for byte
	partial bool   // coverage names something missing
}

func fieldNumber(m protoreflect.ProtoMessage, name protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(name).Number()
}

var (
	itemsField    = fieldNumber((*feedv1.GetFeedResponse)(nil), "items")
	coverageField = fieldNumber((*feedv1.GetFeedResponse)(nil), "coverage")
	missingField  = fieldNumber((*feedv1.Coverage)(nil), "missing")
)

// seed is shared by all hashes of this process, so that they can be compared.
var seed = maphash.MakeSeed()

// read fills g from an encoded GetFeedResponse.
func (g *glance) read(message []byte) error {
	var h maphash.Hash
	h.SetSeed(seed)
	err := eachBytes(message, func(field protowire.Number, value []byte) error {
		switch field {
		case itemsField:
			_, _ = h.Write(protowire.AppendVarint(nil, uint64(len(value)))) // never fails
			_, _ = h.Write(value)
		case coverageField:
			return eachBytes(value, func(field protowire.Number, _ []byte) error {
				g.partial = g.partial || field == missingField
				return nil
			})
		}
		return nil
	})
	g.items = h.Sum64()
	return err
}

// eachBytes calls f with each length-delimited field of an encoded message: messages,
// strings, bytes.
func eachBytes(message []byte, f func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("an answer's field: %w", protowire.ParseError(n))
		}
		message = message[n:]
		n = protowire.ConsumeFieldValue(field, kind, message)
		if n < 0 {
			return fmt.Errorf("field %d of an answer: %w", field, protowire.ParseError(n))
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			if err := f(field, value); err != nil {
				return err
			}
		}
		message = message[n:]
	}
	return nil
}

// asBytes is a gRPC codec that sends a []byte as it is, and reads an answer into a
// *glance.
type asBytes struct{}

// Name implements encoding.CodecV2. It is protobuf's, since the bytes are protobuf.
func (asBytes) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (asBytes) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, errors.New("not bytes")
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (asBytes) Unmarshal(data mem.BufferSlice, v any) error {
	g, ok := v.(*glance)
	if !ok {
		return errors.New("not to be glanced at")
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return g.read(b.ReadOnlyData())
}
