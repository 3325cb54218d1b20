package answers

import (
	"fmt"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/weights"
)

// spec checks a request and returns what package query needs of it.
func (s *Server) spec(req *nodev1.QueryRequest) (query.Spec, error) {
	spec := query.Spec{
		From: millrace.Time(req.FromMs), To: millrace.Time(req.ToMs), AsOf: millrace.Time(req.AsOfMs),
		Measure: req.Measure,
		Limit:   int(req.Limit), Cap: int(req.CapPerEntity), DistinctObjects: req.DistinctObjects, Explain: req.Explain, Features: req.Features,
		Folds: s.cache,
	}
	if err := tooMany(req); err != nil {
		return spec, err
	}
	if spec.Limit < 1 || spec.Limit > maxLimit {
		return spec, millrace.Invalid("limit", fmt.Sprintf("%d is not within 1 to %d", req.Limit, maxLimit), "")
	}
	if spec.Cap < 0 {
		return spec, millrace.Invalid("cap_per_entity", fmt.Sprintf("%d is negative", req.CapPerEntity), "0 is no cap")
	}
	var err error
	if spec.Viewer, err = nodewire.Viewer(req.Viewer); err != nil {
		return spec, err
	}
	ranks := idOf(req)
	if why := s.condemned.why(ranks); why != "" && req.GivesWay {
		return spec, refusal(ranks, why)
	}
	if spec.Model, err = s.models.Weighted(ranks, req.Weights, req.WeightsSum); err != nil {
		return spec, err
	}
	shadow := req.Shadow
	if req.Measure { // then the models that rank beside the question's own also score its items
		shadow = req.Beside
	}
	if (req.Explain || req.Measure) && len(shadow) > 0 {
		var ids []relevance.ID
		for _, m := range shadow {
			ids = append(ids, relevance.ID{Name: m.GetName(), Version: m.GetVersion(), Sum: m.GetSum()})
		}
		spec.Shadow, spec.ShadowErr = s.models.Join(spec.Model, ids...)
	}
	if spec.Filter, err = s.filters.join(sources{req.RequestFilter, req.Filter}, s.schemas.Snapshot()); err != nil {
		return spec, s.unlessHeld(err)
	}
	spec.Exclude, err = served(req, &spec.ServedKey)
	return spec, err
}

// unlessHeld returns refused, the refusal of a filter, unless this node lacks a schema that
// others may have. With that schema the filter may be good. So in that case it returns an
// error after which brokers ask another replica.
func (s *Server) unlessHeld(refused error) error {
	if held := s.schemasHeld.Load(); held != nil {
		if why := (*held)(); why != nil {
			return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "filter", Detail: fmt.Sprintf("a schema cannot be kept here yet (%v), and without it: %v", why, refused)}
		}
	}
	return refused
}

// tooMany returns an error if a request has more of something than brokers send. It is called
// before anything is made of the request.
func tooMany(req *nodev1.QueryRequest) error {
	v := req.Viewer
	for _, has := range []struct {
		field   string
		n, most int
		of      string
	}{
		{"types", len(req.Types), lookup.MaxTypes, "types"}, {"exclude", len(req.Exclude), maxExclude, "hashes"},
		{"above", len(req.Above), maxAbove, "items"}, {"shadow", len(req.Shadow), maxShadow, "models"}, {"beside", len(req.Beside), maxShadow, "models"},
		{"viewer.attributes", len(v.GetAttributes()), maxAttributes, "attributes"}, {"viewer.features", len(v.GetFeatures()), maxFeatures, "features"},
		{"viewer.id", len(v.GetId()), maxNameBytes, "bytes"}, {"examine", len(req.Examine), millrace.MaxIDBytes, "bytes"},
		{"model", len(req.Model), maxNameBytes, "bytes"}, {"model_version", len(req.ModelVersion), maxNameBytes, "bytes"}, {"model_sum", len(req.ModelSum), maxNameBytes, "bytes"},
		{"weights", len(req.Weights), weights.MaxBytes, "bytes"}, {"weights_sum", len(req.WeightsSum), maxNameBytes, "bytes"},
	} {
		if has.n > has.most {
			return millrace.Invalid(has.field, fmt.Sprintf("%d %s, more than %d", has.n, has.of, has.most), "")
		}
	}
	for field, models := range map[string][]*nodev1.Model{"shadow": req.Shadow, "beside": req.Beside} {
		for i, m := range models {
			if n := max(len(m.GetName()), len(m.GetVersion()), len(m.GetSum())); n > maxNameBytes {
				return millrace.Invalid(fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%d bytes, more than %d", n, maxNameBytes), "")
			}
		}
	}
	return nil
}

// served returns the hashes of the records that earlier pages served, and sets the key that
// they are made under. Hashes from an old broker, which sends no key, are under the zero key.
func served(req *nodev1.QueryRequest, key *millrace.ServedKey) (map[uint64]struct{}, error) {
	if len(req.Exclude) == 0 {
		return nil, nil
	}
	if n := len(req.ServedKey); n > 0 && n != len(key) {
		return nil, &millrace.Error{Reason: millrace.ReasonPageToken, Field: "page_token", Detail: fmt.Sprintf("the broker hashes what pages served under a key of %d bytes, not of %d", len(req.ServedKey), len(key)), WayOut: "ask for the first page again"}
	}
	copy(key[:], req.ServedKey)
	all := make(map[uint64]struct{}, len(req.Exclude))
	for _, h := range req.Exclude {
		all[h] = struct{}{}
	}
	return all, nil
}

// The bounds of a request.
const (
	maxLimit  = 1000   // items
	maxShadow = 8      // models in shadow, and as many in beside
	maxAbove  = 20_000 // items whose rank is asked for

	// Brokers have the same bounds for their callers.
	maxAttributes = 1_000
	maxFeatures   = 10_000
	maxNameBytes  = 512
	// maxExclude is twice what brokers remember of a feed's earlier pages.
	maxExclude = 20_000
)
