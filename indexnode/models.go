package indexnode

import (
	"context"
	"strings"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/relevance"
)

// ModelsKind is the kind of the cluster's documents that are model packs, each
// a .tar.zst under its model's name.
const ModelsKind = "models"

// followModels lets the cluster's model packs serve as they come. A pack that
// is refused changes nothing: the last good one stays.
func (h *hosting) followModels(ctx context.Context, packs *cluster.Documents) error {
	for {
		changed := packs.Changed()
		h.admitModels(packs)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// admitModels tries the packs that have not been tried yet.
func (h *hosting) admitModels(packs *cluster.Documents) {
	n := h.node
	for name, doc := range packs.Current() {
		if h.tried[name] == doc.Version {
			continue
		}
		h.tried[name] = doc.Version
		pack, err := relevance.ReadPack(strings.NewReader(doc.Body))
		if err == nil {
			err = n.models.Admit(pack, n.modelSchemas())
		}
		if err != nil {
			n.counters.modelRefused()
			n.log.Error("model pack refused; what served before goes on", "model", name, "err", err)
			continue
		}
		n.log.Info("model serves", "model", name, "version", pack.Manifest.Version)
	}
}

// modelSchemas are the layouts that a spec may name here.
func (n *Node) modelSchemas() relevance.Schemas {
	known := relevance.ShippedSchemas()
	snapshot := n.schemas.Snapshot()
	for _, s := range snapshot.All() {
		known[s.Name()] = snapshot.Latest(s.Name()).Layout()
	}
	return known
}
