package broker

import (
	"context"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/nodewire"
)

// codec is gRPC's own, but that what callers send is a [parcel], and what they
// get is a [delivery].
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// parcel is a request that has arrived and is not parsed yet.
type parcel struct {
	req  proto.Message // to be
	loan *memory.Loan
	err  error // a refusal
}

// delivery is an answer that the caller is to take.
type delivery struct {
	answer proto.Message
	loan   *memory.Loan
	sent   func() // returns the loan, which the connection returns should it end; nil: it would not
}

// send makes a delivery of an answer to whom ctx says. The loan is returned
// when gRPC has sent the last byte of it, or the connection has ended. Where
// that cannot be known, it is returned before.
func send(ctx context.Context, answer proto.Message, loan *memory.Loan) *delivery {
	d := &delivery{answer: answer, loan: loan}
	if p, ok := peer.FromContext(ctx); ok {
		d.sent = intake.Keep(p.Addr, loan)
	}
	return d
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	d, ok := v.(*delivery)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := proto.Size(d.answer)
	pool := mem.DefaultBufferPool()
	if size > maxPooledBytes {
		pool = mem.NopBufferPool{}
	}
	out, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*pool.Get(size))[:0], d.answer)
	if err != nil || d.sent == nil || mem.IsBelowBufferPoolingThreshold(cap(out)) { // of such gRPC does not tell
		d.loan.Return()
		return mem.BufferSlice{mem.SliceBuffer(out)}, err
	}
	_ = d.loan.Hold(min(d.loan.Held(), int64(cap(out)))) // no more for what it was made of
	return mem.BufferSlice{mem.NewBuffer(&out, sentPool{pool, d.sent})}, nil
}

// maxPooledBytes is the largest answer that is written to memory of gRPC's pool,
// whose next pieces are of a megabyte.
const maxPooledBytes = 32 << 10

// sentPool is the pool of an answer, which learns when it is sent.
type sentPool struct {
	mem.BufferPool
	sent func()
}

// Put implements mem.BufferPool.
func (p sentPool) Put(b *[]byte) {
	p.sent()
	p.BufferPool.Put(b)
}

// Unmarshal implements encoding.CodecV2. What is wrong with a parcel is in the
// parcel: gRPC would make an internal error of it.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	p, ok := v.(*parcel)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if p.err = p.loan.Hold(int64(data.Len())); p.err != nil {
		return nil
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	p.err = p.open(b.ReadOnlyData())
	return nil
}

// open parses what [intake.Message] has found bounded.
func (p *parcel) open(message []byte) error {
	var path []protoreflect.Name
	for _, name := range entitiesOf(p.req) {
		path = append(path, protoreflect.Name(name))
	}
	cost, err := intake.Message(message, p.req.ProtoReflect().Descriptor(), path...)
	if err == nil {
		err = p.loan.Hold(int64(len(message)) + cost)
	}
	if err == nil {
		err = unmarshalProto(message, p.req)
	}
	return err
}

// unmarshalProto is proto.Unmarshal, but that the entities of a feed request are
// pieces of one string instead of hundreds, and its viewer is read by hand as
// index nodes do. Whether entities are UTF-8 is left to [readEntities], which
// says which one is not.
func unmarshalProto(message []byte, m proto.Message) (err error) {
	if req, ok := m.(*feedv1.GetFeedRequest); ok {
		err = unmarshalRequest(message, req)
	} else {
		err = proto.Unmarshal(message, m)
	}
	if err != nil {
		return limits.Invalid("", "send a "+string(m.ProtoReflect().Descriptor().FullName()), "%s", plain(err))
	}
	return nil
}

// The tags of GetFeedRequest.viewer and entities.
const (
	viewerTag   = 2<<3 | uint64(protowire.BytesType)
	entitiesTag = 3<<3 | uint64(protowire.BytesType)
)

// unmarshalRequest is as [unmarshalProto] says.
func unmarshalRequest(message []byte, req *feedv1.GetFeedRequest) error {
	n, viewers, others := 0, 0, 0 // entities, viewers, and bytes of all else
	for at := 0; at < len(message); {
		tag, _, end, err := nextField(message, at)
		switch {
		case err != nil:
			return err
		case tag == entitiesTag:
			n++
		case tag == viewerTag:
			viewers++
			fallthrough
		default:
			others += end - at
		}
		at = end
	}
	all := string(message)
	entities, rest, viewer := make([]string, 0, n), make([]byte, 0, others), (*feedv1.Viewer)(nil)
	for at := 0; at < len(message); {
		tag, value, end, _ := nextField(message, at)
		switch {
		case tag == entitiesTag:
			entities = append(entities, all[value:end])
		case tag == viewerTag && viewers == 1: // several would be joined
			viewer = &feedv1.Viewer{}
			if nodewire.ReadViewer(message[value:end], viewer) {
				break
			}
			viewer = nil
			fallthrough
		default:
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
	if viewer != nil {
		req.Viewer = viewer
	}
	return nil
}

// nextField returns the tag of the field at a place, and where its value, if
// it has a length, begins and ends.
func nextField(message []byte, at int) (tag uint64, value, end int, err error) {
	if at+1 < len(message) && uint64(message[at]) == entitiesTag && message[at+1] < 0x80 { // as most are
		if value, end = at+2, at+2+int(message[at+1]); end <= len(message) {
			return entitiesTag, value, end, nil
		}
	}
	field, kind, n := protowire.ConsumeTag(message[at:])
	if n < 0 {
		return 0, 0, 0, protowire.ParseError(n)
	}
	size := protowire.ConsumeFieldValue(field, kind, message[at+n:])
	if size < 0 {
		return 0, 0, 0, protowire.ParseError(size)
	}
	end = at + n + size
	if kind == protowire.BytesType {
		b, _ := protowire.ConsumeBytes(message[at+n:])
		value = end - len(b)
	}
	return protowire.EncodeTag(field, kind), value, end, nil
}
