package doors

import (
	"context"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/internal/arrivals"
	"github.com/millrace/millrace/internal/memory"
)

// codec is gRPC's codec for protobuf, which also reads a request into a [parcel] and
// writes the answer in a [delivery]. Both count the memory that they take.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// parcel is a request that has arrived and is not parsed yet.
type parcel struct {
	req  proto.Message // what Unmarshal parses the request into
	loan *memory.Loan  // for the memory of the request
	err  error         // the refusal, if the request cannot be parsed; else nil
}

// delivery is an answer that is to be sent to the caller.
type delivery struct {
	answer proto.Message
	loan   *memory.Loan // for the memory of the answer
	sent   func()       // returns the loan, unless the connection has ended and so returned it; nil: the connection does not keep the loan
}

// send returns the delivery of an answer to the peer of ctx. The loan is returned when
// gRPC has sent the last byte of the answer, or the connection has ended. Where neither can
// be known, it is returned when the answer is marshalled.
func send(ctx context.Context, answer proto.Message, loan *memory.Loan) *delivery {
	d := &delivery{answer: answer, loan: loan}
	if p, ok := peer.FromContext(ctx); ok {
		d.sent = arrivals.Keep(p.Addr, loan)
	}
	return d
}

// taken returns the loan, and removes it from those that the connection keeps.
func (d *delivery) taken() {
	if d.sent == nil {
		d.loan.Return()
		return
	}
	d.sent()
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
	if err != nil || d.sent == nil || mem.IsBelowBufferPoolingThreshold(cap(out)) { // gRPC does not pool so small a buffer, and so does not tell when it is sent
		d.taken()
		return mem.BufferSlice{mem.SliceBuffer(out)}, err
	}
	_ = d.loan.Hold(min(d.loan.Held(), int64(cap(out)))) // from here on the loan is for the encoded bytes alone, not for the message
	return mem.BufferSlice{mem.NewBuffer(&out, sentPool{pool, d.sent})}, nil
}

// maxPooledBytes is the size of the largest answer that is written to a buffer of gRPC's
// pool. The next larger buffers of that pool have a megabyte each.
const maxPooledBytes = 32 << 10

// sentPool is the buffer pool of one answer. gRPC puts the buffer back when it has sent
// the answer.
type sentPool struct {
	mem.BufferPool
	sent func()
}

// Put implements mem.BufferPool.
func (p sentPool) Put(b *[]byte) {
	p.sent()
	p.BufferPool.Put(b)
}

// Unmarshal implements encoding.CodecV2. It puts a refusal of a request into the parcel and
// returns nil: gRPC would make an internal error of what it returns.
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
	p.err = intake.ReadMessage(b.ReadOnlyData(), p.req, p.loan)
	return nil
}
