package indexnode

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
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
		h.admitModels(ctx, packs)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// admitModels tries the packs that have not been tried yet.
func (h *hosting) admitModels(ctx context.Context, packs *cluster.Documents) {
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
		n.tellUncovered(ctx, name)
	}
}

// coverageSample is how many candidates show what features they have.
const coverageSample = 200

// tellUncovered warns of features that no candidate of the newest question
// has. It refuses nothing: each replica has other questions, and all must
// serve the same model.
func (n *Node) tellUncovered(ctx context.Context, model string) {
	features, candidates, err := n.uncovered(ctx, model)
	if err != nil {
		n.log.Warn("what features candidates have is not known", "model", model, "err", err)
	} else if len(features) > 0 {
		n.log.Warn("no candidate has these features", "model", model, "features", features, "candidates", candidates)
	}
}

// uncovered asks the newest question again for the best candidates by a model,
// and returns the features that are missing on each.
func (n *Node) uncovered(ctx context.Context, model string) (features []string, candidates int, err error) {
	last := n.asked.Load()
	if last == nil {
		return nil, 0, nil
	}
	resp, err := n.query(ctx, &nodev1.QueryRequest{
		Entities: last.Entities, Types: last.Types, FromMs: last.FromMs, ToMs: last.ToMs, AsOfMs: last.AsOfMs,
		Viewer: last.Viewer, Filter: last.Filter, RequestFilter: last.RequestFilter, Model: model, Limit: coverageSample, Explain: true,
	})
	if err != nil {
		return nil, 0, err
	}
	var has []bool
	for _, it := range resp.Items {
		if has == nil {
			has = make([]bool, len(it.Explain.Features))
		}
		for i, f := range it.Explain.Features {
			_, null := f.Value.GetKind().(*structpb.Value_NullValue)
			_, text := f.Value.GetKind().(*structpb.Value_StringValue)
			has[i] = has[i] || !null && !(text && f.Value.GetStringValue() == "")
		}
	}
	for i, ok := range has {
		if !ok {
			features = append(features, resp.Items[0].Explain.Features[i].Feature)
		}
	}
	return features, len(resp.Items), nil
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
