package nodewire

import (
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Size returns about how many bytes a response takes, rather more than fewer. proto.Size
// goes over every field by reflection, and takes some microseconds for a page of items.
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

// ItemBytes is at most what an item takes beside its texts, its body and its account.
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
