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

// codec is gRPC's own, but that what callers send is a [parcel], and what they
// get is a [delivery].
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// parcel is a request that has arrived and is not parsed yet.
type parcel struct {
	req  proto.Message // that it is parsed into
	loan *memory.Loan
	err  error // a refusal
}

// delivery is an answer that the caller is to take.
type delivery struct {
	answer proto.Message
	loan   *memory.Loan
	sent   func() // returns the loan, as the connection does if it ends before; nil: the connection does not know the loan
}

// send makes a delivery of an answer to whom ctx says. The loan is returned
// when gRPC has sent the last byte of it, or the connection has ended. Where
// that cannot be known, it is returned before.
func send(ctx context.Context, answer proto.Message, loan *memory.Loan) *delivery {
	d := &delivery{answer: answer, loan: loan}
	if p, ok := peer.FromContext(ctx); ok {
		d.sent = arrivals.Keep(p.Addr, loan)
	}
	return d
}

// taken returns the loan, and has the connection forget it.
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
	if err != nil || d.sent == nil || mem.IsBelowBufferPoolingThreshold(cap(out)) { // gRPC does not tell when it has sent what is so small
		d.taken()
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
	p.err = intake.ReadMessage(b.ReadOnlyData(), p.req, p.loan)
	return nil
}
