package models

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/relevance/weights"
)

// shelf is the models and weights at hand, by the checksums that exposures name.
type shelf struct {
	models  map[ranking]*relevance.Model
	weights map[string]map[string]float64
	defined map[string]sets // variants of the experiment, and what they set
	fault   error           // of the cluster, which may have more
}

// sets is what a variant sets that decides which items its pages have; "" for none.
type sets struct {
	chooses string // that has it choose among other records
	spreads string // that keeps items of one entity apart
	limit   string // that has it show more or fewer
}

// sized says why how many items a page has may depend on the variant.
func (s sets) sized(variant string, defined bool) string {
	switch set := cmp.Or(s.chooses, s.spreads, s.limit); {
	case !defined:
		return "what variant " + variant + " sets is not known, which may be how many items a page has; --definition, or a cluster that has the experiment, tells"
	case set != "":
		return "variant " + variant + " sets " + set + ", so that the number of items of a page depends on the variant"
	}
	return ""
}

func newShelf() *shelf {
	s := &shelf{models: map[ranking]*relevance.Model{}, weights: map[string]map[string]float64{}, defined: map[string]sets{}}
	for _, name := range relevance.Builtin().Names() {
		if m, err := relevance.Builtin().Get(name); err == nil {
			s.models[ranking{name: name, version: m.Version()}] = m
		}
	}
	return s
}

// model is what a row names.
func (s *shelf) model(k ranking) (*relevance.Model, error) {
	pack, weighed, has := strings.Cut(k.checksum, "+")
	m := s.models[ranking{k.name, k.version, pack}]
	if m == nil {
		return nil, errors.Join(fmt.Errorf("%s is not at hand%s", k, k.wayOut()), s.fault)
	}
	if !has {
		return m, nil
	}
	set := s.weights[weighed]
	if set == nil {
		return nil, errors.Join(fmt.Errorf("the weights of %s are not at hand: %.12s (give the document of the experiment by --definition, or name the cluster that has it by --etcd and --cluster)", k.name, weighed), s.fault)
	}
	return m.Weighted(set)
}

// weigh puts down weights.
func (s *shelf) weigh(set map[string]float64) {
	if len(set) > 0 {
		s.weights[weights.Sum(weights.Form(set))] = set
	}
}

// define takes from a document what variants of an experiment set.
func (s *shelf) define(doc *experiment.Document, of string) (has bool) {
	for i := range doc.Experiments {
		if doc.Experiments[i].Name != of {
			continue
		}
		has = true
		for _, v := range doc.Experiments[i].Variants {
			s.weigh(v.Set.Weights)
			set := s.defined[v.Name] // by other versions of the document, too
			for p, to := range map[experiment.Parameter]*string{
				experiment.OfFilter: &set.chooses, experiment.OfWindow: &set.chooses, experiment.OfTypes: &set.chooses,
				experiment.OfCap: &set.spreads, experiment.OfSpacing: &set.spreads, experiment.OfLimit: &set.limit,
			} {
				if !v.Set.Leaves(p) {
					*to = max(*to, string(p)) // the same one every time
				}
			}
			s.defined[v.Name] = set
		}
	}
	return has
}

// definedBy takes what a file of a document says.
func (s *shelf) definedBy(file, of string) error {
	text, err := document.ReadFile(file)
	if err != nil {
		return err
	}
	doc, err := experiment.Parse(file, text)
	if err == nil && !s.define(&doc, of) {
		err = fmt.Errorf("%s has no experiment %s", file, of)
	}
	return err
}

// fetch takes from a cluster what it has of models that ranked, and every version of
// the experiment that it keeps.
func (s *shelf) fetch(ctx context.Context, cl *cluster.Client, of string, want []ranking, validate func(*modelpack.Pack) (*relevance.Model, error)) error {
	models, err := artefacts.Watch(ctx, cl, indexnode.ModelsKind)
	if err != nil {
		return err
	}
	documents, err := artefacts.Watch(ctx, cl, experiments.Kind)
	if err != nil {
		return err
	}
	for _, versions := range documents.All() {
		for _, v := range versions {
			body, err := documents.Body(ctx, v)
			if errors.Is(err, artefacts.ErrNoBytes) {
				continue // what it defined is as of a version that is not kept
			}
			if err != nil {
				return err
			}
			doc, _ := experiment.Parse(v.Name, body) // as far as it can be read
			s.define(&doc, of)
		}
	}
	for _, k := range want {
		sum, _, _ := strings.Cut(k.checksum, "+")
		k.checksum = sum
		v := artefacts.Version{Name: k.name, Version: k.version, Sum: sum}
		if s.models[k] != nil || !models.Has(v) {
			continue
		}
		m, err := modelOf(ctx, models, v, validate)
		if err != nil {
			return err
		}
		s.models[k] = m
	}
	return nil
}

// modelOf is a version that a cluster has.
func modelOf(ctx context.Context, models *artefacts.Kind, v artefacts.Version, validate func(*modelpack.Pack) (*relevance.Model, error)) (*relevance.Model, error) {
	body, err := models.Body(ctx, v)
	if err != nil {
		return nil, err
	}
	pack, err := modelpack.Read(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return validate(pack)
}

// wanted are the rankings of all arms.
func (r *replay) wanted() (all []ranking) {
	for _, a := range r.arms() {
		all = append(all, slices.Collect(maps.Keys(a.rankings))...)
	}
	return all
}
