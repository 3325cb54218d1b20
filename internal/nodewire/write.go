package nodewire

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// writer appends messages as protobuf writes them. It is stuck at what it does
// not know, and at a string that is no UTF-8, which protobuf refuses.
type writer struct {
	b     []byte
	stuck bool
}

// requestRoom returns about how many bytes a request takes.
func requestRoom(m *nodev1.QueryRequest) int {
	return len(m.Entities) + len(m.Filter) + len(m.RequestFilter) + len(m.Weights) + 8*len(m.Exclude) + 512
}

func (w *writer) request(m *nodev1.QueryRequest) {
	if w.stuck = m.Explain || m.Examine != "" || len(m.Above) > 0 || len(m.Shadow) > 0 || len(m.Beside) > 0 || m.Features || m.Measure; w.stuck {
		return
	}
	if len(m.Entities) > 0 {
		w.bytes(1, m.Entities)
	}
	for _, t := range m.Types {
		w.text(2, t)
	}
	w.number(3, m.FromMs)
	w.number(4, m.ToMs)
	w.number(5, m.AsOfMs)
	w.nonempty(6, m.Filter)
	w.nonempty(7, m.Model)
	if m.Viewer != nil {
		at := w.open(8)
		w.viewer(m.Viewer)
		w.close(at)
	}
	w.number(9, int64(m.Limit))
	w.number(10, int64(m.CapPerEntity))
	if m.DistinctObjects {
		w.number(11, 1)
	}
	if len(m.Exclude) > 0 {
		w.b = protowire.AppendVarint(protowire.AppendTag(w.b, 12, protowire.BytesType), uint64(8*len(m.Exclude)))
		for _, h := range m.Exclude {
			w.b = protowire.AppendFixed64(w.b, h)
		}
	}
	w.nonempty(17, m.ModelVersion)
	w.nonempty(18, m.ModelSum)
	w.nonempty(30, m.RequestFilter)
	w.number(40, m.MaxBytes)
	if len(m.ServedKey) > 0 {
		w.bytes(41, m.ServedKey)
	}
	w.nonempty(44, m.Weights)
	w.nonempty(45, m.WeightsSum)
	if m.GivesWay {
		w.number(50, 1)
	}
}

func (w *writer) viewer(v *feedv1.Viewer) {
	w.nonempty(1, v.Id)
	for name, value := range v.Attributes {
		entry := w.open(2)
		w.text(1, name)
		at := w.open(2)
		w.value(value)
		w.close(at)
		w.close(entry)
	}
	for name, x := range v.Features {
		entry := w.open(3)
		w.text(1, name)
		w.fixed(2, math.Float64bits(x))
		w.close(entry)
	}
}

func (w *writer) value(v *structpb.Value) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		w.fixed(2, math.Float64bits(k.NumberValue))
	case *structpb.Value_StringValue:
		w.text(3, k.StringValue)
	case *structpb.Value_BoolValue:
		w.b = protowire.AppendVarint(protowire.AppendTag(w.b, 4, protowire.VarintType), protowire.EncodeBool(k.BoolValue))
	case *structpb.Value_ListValue:
		list := w.open(6)
		for _, x := range k.ListValue.GetValues() {
			at := w.open(1)
			w.value(x)
			w.close(at)
		}
		w.close(list)
	default: // brokers send none
		w.stuck = true
	}
}

// Size returns about how many bytes a response takes, rather more than fewer.
func Size(m *nodev1.QueryResponse) int64 {
	n := 256 + 24*len(m.GetPartitions().GetAnswered()) + 16*len(m.GetPartitions().GetMissing()) + 10*len(m.Above)
	for _, it := range m.Items {
		n += itemSize(it)
	}
	for _, r := range m.Beside {
		n += len(r.Model) + len(r.Error) + 160
		for _, it := range r.Items {
			n += itemSize(it)
		}
	}
	for _, f := range m.Findings {
		n += proto.Size(f)
	}
	for _, c := range m.Clauses {
		n += proto.Size(c)
	}
	for _, name := range m.FeatureNames {
		n += len(name) + 8
	}
	return int64(n)
}

// ItemBytes is what an item takes beside its texts, its body and its account.
const ItemBytes = 64

func itemSize(it *nodev1.Item) int {
	n := ItemBytes + len(it.Id) + len(it.Entity) + len(it.Type) + len(it.Object) + len(it.Body)
	for _, also := range it.Also {
		n += itemSize(also)
	}
	if it.Explain != nil {
		n += proto.Size(it.Explain)
	}
	if it.Features != nil {
		n += proto.Size(it.Features)
	}
	return n
}

func (w *writer) response(m *nodev1.QueryResponse) {
	if w.stuck = len(m.Findings) > 0 || len(m.Above) > 0 || m.Times != nil || len(m.Beside) > 0 || len(m.Clauses) > 0 || len(m.UnknownTypes) > 0 || len(m.KnownTypes) > 0 || len(m.FeatureNames) > 0 || len(m.Lacking) > 0 || m.Looked > 0; w.stuck {
		return
	}
	for _, it := range m.Items {
		at := w.open(1)
		w.item(it)
		w.close(at)
	}
	w.nonempty(3, m.Model)
	w.nonempty(4, m.ModelVersion)
	w.nonempty(5, m.Execution)
	if s := m.Stages; s != nil {
		at := w.open(6)
		for i, n := range [...]int64{s.Candidates, s.FilteredFalse, s.FilteredNull, s.FilteredError, s.FilteredNan, s.Scored, s.Capped} {
			w.number(protowire.Number(i+1), n)
		}
		w.close(at)
	}
	if m.Partitions != nil {
		at := w.open(11)
		w.partitions(m.Partitions)
		w.close(at)
	}
	w.nonempty(12, m.ModelSum)
	w.number(40, m.WithheldBytes)
	w.nonempty(44, m.WeightsSum)
	w.number(50, int64(m.Protocol))
	w.number(51, m.ScoringNs)
}

func (w *writer) partitions(m *nodev1.Partitions) {
	w.stuck = w.stuck || len(m.Missing) > 0
	list(w, 1, m.Answered)
	list(w, 2, m.AppliedContent)
	list(w, 3, m.AppliedFeatures)
	list(w, 4, m.LagMs)
}

// list writes numbers, if there are any.
func list[T int32 | int64](w *writer, field protowire.Number, all []T) {
	if len(all) == 0 {
		return
	}
	at := w.open(field)
	for _, n := range all {
		w.b = protowire.AppendVarint(w.b, uint64(n))
	}
	w.close(at)
}

func (w *writer) item(it *nodev1.Item) {
	w.stuck = w.stuck || it.Explain != nil || it.Features != nil
	if x := math.Float64bits(it.Score); x != 0 {
		w.fixed(1, x)
	}
	w.number(2, it.TimeMs)
	w.nonempty(3, it.Id)
	w.nonempty(4, it.Entity)
	w.nonempty(5, it.Type)
	w.nonempty(6, it.Object)
	if it.Schema != 0 {
		w.fixed(7, it.Schema)
	}
	if len(it.Body) > 0 {
		w.bytes(8, it.Body)
	}
	for _, also := range it.Also {
		at := w.open(9)
		w.item(also)
		w.close(at)
	}
}

// open begins a message within a message, and returns where; close ends it.
func (w *writer) open(field protowire.Number) int {
	w.b = protowire.AppendTag(w.b, field, protowire.BytesType)
	return len(w.b)
}

func (w *writer) close(at int) {
	n := uint64(len(w.b) - at)
	w.b = protowire.AppendVarint(w.b, n) // for the room, and then before what it counts
	copy(w.b[at+protowire.SizeVarint(n):], w.b[at:])
	protowire.AppendVarint(w.b[:at], n)
}

func (w *writer) number(field protowire.Number, n int64) {
	if n != 0 {
		w.b = protowire.AppendVarint(protowire.AppendTag(w.b, field, protowire.VarintType), uint64(n))
	}
}

func (w *writer) fixed(field protowire.Number, x uint64) {
	w.b = protowire.AppendFixed64(protowire.AppendTag(w.b, field, protowire.Fixed64Type), x)
}

func (w *writer) bytes(field protowire.Number, p []byte) {
	w.b = protowire.AppendBytes(protowire.AppendTag(w.b, field, protowire.BytesType), p)
}

func (w *writer) nonempty(field protowire.Number, s string) {
	if s != "" {
		w.text(field, s)
	}
}

func (w *writer) text(field protowire.Number, s string) {
	w.stuck = w.stuck || !utf8.ValidString(s)
	w.b = protowire.AppendString(protowire.AppendTag(w.b, field, protowire.BytesType), s)
}
