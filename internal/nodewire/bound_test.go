package nodewire

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// A request of millions of empty messages, which would take gigabytes, is
// refused before it is parsed; the largest that brokers send is read.
func TestHostileRequestsAreNotParsed(t *testing.T) {
	read := func(b []byte) (*nodev1.QueryRequest, error) {
		m := &nodev1.QueryRequest{}
		return m, Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, m)
	}
	viewer := bytes.Repeat([]byte{2<<3 | 2, 0}, 4_000_000) // attributes without names
	for what, b := range map[string][]byte{
		"above":  bytes.Repeat(protowire.AppendVarint(protowire.AppendTag(nil, 15, protowire.BytesType), 0), 8_000_000),
		"shadow": bytes.Repeat(protowire.AppendVarint(protowire.AppendTag(nil, 19, protowire.BytesType), 0), 5_000_000),
		"beside": bytes.Repeat(protowire.AppendVarint(protowire.AppendTag(nil, 42, protowire.BytesType), 0), 5_000_000),
		"within": append([]byte{13 << 3, 1}, protowire.AppendBytes(protowire.AppendTag(nil, 8, protowire.BytesType), viewer)...),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := read(b)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, errTooMany) {
			t.Errorf("%s: %v", what, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s took %d MiB", what, took>>20)
		}
	}
	most := &nodev1.QueryRequest{Model: "m", Exclude: make([]uint64, 20_000)}
	for range 20_000 {
		most.Above = append(most.Above, &nodev1.Item{Id: "r", Entity: "e", Type: "t", Score: 1, TimeMs: 1})
	}
	b, err := proto.Marshal(most)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := read(b); err != nil || !proto.Equal(got, most) {
		t.Errorf("the largest that brokers send: %v", err)
	}
}
