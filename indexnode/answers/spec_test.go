package answers

import (
	"errors"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"math"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/weights"
)

// Weights that a node cannot put in place of a model's own are refused, with the
// parameter that may be meant, and those of a model that is not here are asked
// of another node.
func TestWeightsRefused(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	ask := func(model, version, form, sum string) *millrace.Error {
		_, err := n.Query(t.Context(), &nodev1.QueryRequest{Entities: nodetest.Pack("member:1"), ToMs: math.MaxInt64, Model: model, ModelVersion: version, Weights: form, WeightsSum: sum, Limit: 5})
		var e *millrace.Error
		if err = rpcerr.FromStatus(err); err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
		return e
	}
	good, bad := weights.Form(map[string]float64{"likes": 2}), weights.Form(map[string]float64{"lieks": 2})
	if e := ask("home", "", good, weights.Sum(good)); e != nil {
		t.Error(e)
	}
	if e := ask("home", "", bad, weights.Sum(bad)); e == nil || e.Reason != millrace.ReasonUnknown || e.Field != "weights" || e.WayOut != "did you mean likes?" {
		t.Errorf("%+v", e)
	}
	if e := ask("home", "", good, weights.Sum(bad)); e == nil || e.Reason != millrace.ReasonInvalid {
		t.Errorf("%+v", e)
	}
	if e := ask("nosuch", "2", good, weights.Sum(good)); e == nil || e.Reason != millrace.ReasonNotHere {
		t.Errorf("%+v", e)
	}
	if e := ask("home", "", strings.Repeat("x", weights.MaxBytes+1), ""); e == nil || e.Field != "weights" || e.Reason != millrace.ReasonInvalid {
		t.Errorf("%+v", e)
	}
}

// An answer names the version that it was asked by, beside others of its name, and
// another pack under that name is asked of another node.
func TestAnAnswerIsByTheVersionAsked(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	known := relevance.ShippedSchemas()
	for _, version := range []string{"1", "2"} {
		pack := nodetest.PackOf(t, strings.Replace(nodetest.LikesSpec, `"1"`, `"`+version+`"`, 1), nodetest.LikesRow, known)
		sum := strings.Repeat(version, 64)
		if _, err := pack.Admit(n.models, sum, known); err != nil {
			t.Fatal(err)
		}
		req := &nodev1.QueryRequest{Entities: nodetest.Pack("member:1"), ToMs: math.MaxInt64, Model: "likes", ModelVersion: version, ModelSum: sum, Limit: 5}
		resp, err := n.Query(t.Context(), req)
		if err != nil || resp.ModelVersion != version || resp.ModelSum != sum {
			t.Errorf("%s: %v, %v", version, resp, err)
		}
		req.ModelSum = strings.Repeat("0", 64)
		_, err = n.Query(t.Context(), req)
		var e *millrace.Error
		if err = rpcerr.FromStatus(err); !errors.As(err, &e) || e.Reason != millrace.ReasonNotHere || rpcerr.Refused(err) {
			t.Errorf("%s with another checksum: %v", version, err)
		}
	}
}
