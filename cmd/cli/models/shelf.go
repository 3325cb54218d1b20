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

// shelf has the models and weights that were found in files, in the binary and in a cluster,
// under the names that exposures give them.
type shelf struct {
	models  map[ranking]*relevance.Model
	weights map[string]map[string]float64 // sets of weights by the checksum of the set; a set has numbers by the names of weights
	defined map[string]sets               // what each variant of the experiment sets, by variant
	fault   error                         // why the shelf may lack what the cluster has; nil: the cluster was read whole, or need not be read
}

// sets names the parameters of a feed that a variant sets and that decide which items its
// pages have. There are three kinds of them. Each field has the name of one parameter of its
// kind; "" if the variant sets none.
type sets struct {
	chooses string // filter, window or types, which say what records can be on a page
	spreads string // cap or spacing, which keep items of one entity apart
	limit   string // limit, which says how many items a page has
}

// sized returns why the number of items of a page may depend on the variant; "" if it does
// not. defined is whether it is known what the variant sets.
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

// model returns the model that a row names, with the weights that the row names, if any. The
// error says which of them the shelf does not have.
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

// weigh adds weights, under their checksum.
func (s *shelf) weigh(set map[string]float64) {
	if len(set) > 0 {
		s.weights[weights.Sum(weights.Form(set))] = set
	}
}

// define adds what the variants of an experiment set in a document; of is the name of the
// experiment. It reports whether the document has that experiment.
func (s *shelf) define(doc *experiment.Document, of string) (has bool) {
	for i := range doc.Experiments {
		if doc.Experiments[i].Name != of {
			continue
		}
		has = true
		for _, v := range doc.Experiments[i].Variants {
			s.weigh(v.Set.Weights)
			set := s.defined[v.Name] // has what other versions of the document set
			for p, to := range map[experiment.Parameter]*string{
				experiment.OfFilter: &set.chooses, experiment.OfWindow: &set.chooses, experiment.OfTypes: &set.chooses,
				experiment.OfCap: &set.spreads, experiment.OfSpacing: &set.spreads, experiment.OfLimit: &set.limit,
			} {
				if !v.Set.Leaves(p) {
					*to = max(*to, string(p)) // if several are set, it is the last by name, so that it is the same in every run
				}
			}
			s.defined[v.Name] = set
		}
	}
	return has
}

// definedBy is define for a document in a file. A document without the experiment is an
// error.
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

// fetch adds what a cluster has: the models in want, and what the variants of an experiment
// set in every version of its document that the cluster keeps. of is the name of the
// experiment. validate returns the model of a pack.
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
				continue // the cluster does not keep the text of this version
			}
			if err != nil {
				return err
			}
			doc, _ := experiment.Parse(v.Name, body) // what could be read of a document with errors is used
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

// modelOf returns a version of a model that a cluster has. validate returns the model of a
// pack.
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

// wanted returns the models that ranked the pages of all arms.
func (r *replay) wanted() (all []ranking) {
	for _, a := range r.arms() {
		all = append(all, slices.Collect(maps.Keys(a.rankings))...)
	}
	return all
}
