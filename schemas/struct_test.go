package schemas

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// checkStruct holds AppendStruct against JSONValue: of all fields the same
// verdict in all it says, the same value, whole and cut to every other field, in no more bytes
// than protobuf itself takes, behind what was there before.
func checkStruct(t testing.TB, s *Schema, body []byte) {
	t.Helper()
	value, want := s.JSONValue(body)
	var odd []string
	for i := 1; i < len(s.root.fields); i += 2 {
		odd = append(odd, s.root.fields[i].name)
	}
	for _, only := range [][]string{nil, append(odd, "no field"), {s.root.fields[0].name}, {"no field"}} {
		before := []byte("before")
		got, err := s.AppendStruct(before, body, s.Select(only))
		if only != nil && want != nil && err == nil {
			continue // the fault is in a field that was passed over
		}
		if (only == nil || want == nil) && !reflect.DeepEqual(err, want) {
			t.Fatalf("%x: the Struct says %v, JSON %v", body, err, want)
		}
		raw, ok := bytes.CutPrefix(got, before)
		if !ok || err != nil && len(raw) > 0 {
			t.Fatalf("%x, %v: %q does not begin as it was, or has something of a refused body", body, err, got)
		}
		if err != nil {
			continue
		}
		shown := map[string]any{}
		for name, x := range value {
			if only == nil || slices.Contains(only, name) {
				shown[name] = x
			}
		}
		wantStruct, err := structpb.NewStruct(shown)
		if err != nil {
			t.Fatal(err)
		}
		gotStruct := &structpb.Struct{}
		if err := proto.Unmarshal(raw, gotStruct); err != nil {
			t.Fatalf("%x becomes %x: %v", body, raw, err)
		}
		if !proto.Equal(gotStruct, wantStruct) {
			t.Fatalf("%x is\n%v, want\n%v", body, gotStruct, wantStruct)
		}
		if n := proto.Size(wantStruct); n != len(raw) {
			t.Fatalf("%x takes %d bytes, protobuf %d", body, len(raw), n)
		}
	}
}

// TestStructLengths has values whose lengths take one to four bytes, at every
// level.
func TestStructLengths(t *testing.T) {
	s := mustSchema(t, withFields(`{"name":"f","type":{"type":"map","values":{"type":"array","items":
		{"type":"record","name":"R","fields":[{"name":"text","type":"string"},{"name":"raw","type":"bytes"}]}}}}`))
	for _, n := range []int{0, 100, 110, 120, 125, 128, 16_340, 16_384, 262_144} {
		text := strings.Repeat("x", n)
		raw := strings.Repeat("AAAA", n/4)
		body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":"i","who":"m:1","kind":"post","at":5,"f":{"k%s":[{"text":%q,"raw":%q},{"text":"","raw":""}],"l":[]}}`, text, text, raw))
		if err != nil {
			t.Fatal(err)
		}
		checkStruct(t, s, body)
	}
}

// BenchmarkAppendStruct is an activity as a Struct on the wire, beside the way
// by values.
func BenchmarkAppendStruct(b *testing.B) {
	body := benchBody(b)
	b.Run("direct", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			var err error
			if buf, err = Activity().AppendStruct(buf[:0], body, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("a field", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		only := Activity().Select([]string{"id"})
		for b.Loop() {
			var err error
			if buf, err = Activity().AppendStruct(buf[:0], body, only); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("by values", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			value, err := Activity().JSONValue(body)
			if err != nil {
				b.Fatal(err)
			}
			record, err := structpb.NewStruct(value)
			if err != nil {
				b.Fatal(err)
			}
			if buf, err = (proto.MarshalOptions{}).MarshalAppend(buf[:0], record); err != nil {
				b.Fatal(err)
			}
		}
	})
}
