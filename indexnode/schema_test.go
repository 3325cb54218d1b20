package indexnode

import (
	"slices"
	"testing"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A node names the fields of records by all its schemas to who asks, and not
// again to who says that it knows them.
func TestFieldsAreToldOnce(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	for _, s := range []*schemas.Schema{schemas.Note(), schemas.Features()} {
		if _, err := n.schemas.Admit(s); err != nil {
			t.Log(err) // it is there
		}
	}
	ask := func(req *nodev1.GetSchemaRequest) *nodev1.GetSchemaResponse {
		req.Fingerprint = uint64(schemas.Note().Fingerprint())
		resp, err := n.GetSchema(t.Context(), req)
		if err != nil || resp.Json != schemas.Note().JSON() {
			t.Fatalf("%v, %v", resp, err)
		}
		return resp
	}
	if got := ask(&nodev1.GetSchemaRequest{}); len(got.Fields) > 0 || got.FieldsSum != 0 {
		t.Errorf("unasked: %v", got.Fields)
	}
	all := ask(&nodev1.GetSchemaRequest{Fields: true})
	if !slices.Contains(all.Fields, "stars") || slices.Contains(all.Fields, "subject") || all.FieldsSum == 0 {
		t.Errorf("%v, with sum %d", all.Fields, all.FieldsSum)
	}
	if again := ask(&nodev1.GetSchemaRequest{Fields: true, FieldsSum: all.FieldsSum}); len(again.Fields) > 0 || again.FieldsSum != all.FieldsSum {
		t.Errorf("again: %v", again)
	}
	if other := ask(&nodev1.GetSchemaRequest{Fields: true, FieldsSum: all.FieldsSum + 2}); !slices.Equal(other.Fields, all.Fields) {
		t.Errorf("to who knows others: %v", other.Fields)
	}
}

// The order of admission, and what was retired, outlive the process.
func TestSchemasOutliveTheNode(t *testing.T) {
	fs := vfs.NewMem()
	open := func() *Node {
		n, err := Open(Config{ID: "test", Dir: "node", Brokers: kafka.At("127.0.0.1:1"), Cluster: new(cluster.Client), Store: store.Options{FS: fs}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first, second := nodetest.Review(t, "Review", `{"name":"likes","type":"long"}`), nodetest.Review(t, "Review", `{"name":"likes","type":"double"}`, `{"name":"junk","type":"long","default":0}`)
	n := open()
	for _, s := range []*schemas.Schema{first, second} {
		if _, err := n.schemas.Admit(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.schemas.Retire(second.Fingerprint()); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open()
	known := n.schemas.Snapshot()
	if all := known.All(); len(all) != 2 || all[0].Fingerprint() != first.Fingerprint() || !known.Retired(second.Fingerprint()) || known.Family("shop.Review").Layout().Index("junk") >= 0 {
		t.Errorf("%d schemas are known, in another order or retired otherwise", len(all))
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}
