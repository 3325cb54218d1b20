package relevance

import (
	"slices"

	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/relevance/trees"
)

// treesKeys are the keys of the section trees; see forest.
var treesKeys = []string{"model", "inputs", "class", "output"}

// forest reads the section trees of a spec, and the model file that it names, into
// p.Forest. Faults go to r.problems.
//
//	trees:
//	  model: home.txt     # a LightGBM or XGBoost file beside the spec
//	  inputs: [a, b]      # the feature of each of its columns; if left out, by their names
//	  class: 2            # which class of a multiclass model
//	  output: raw         # the sum of the leaves, without the link of the objective
func (r *specReader) forest(p *Parameters, section entry) {
	r.namedTables(p)
	for name, at := range p.at {
		r.add(at, "remove it", "a weight for %s, and trees have none", name)
	}
	for i := range r.spec.Features {
		f := &r.spec.Features[i]
		if f.Tree == nil {
			continue
		}
		if kind, err := featureKind(f.Tree.Type); err != nil || kind != plan.Number {
			r.add(f.at, "make a number of it, such as lookup(codes, record.verb, -1)", "%s is a %s, and trees take numbers", f.Name, f.Tree.Type)
		}
	}
	if section.value == nil {
		r.add(r.at(1, 1), "add trees: with model: FILE", "the scorer is trees, and there are none")
		return
	}
	keys := map[string]entry{}
	for _, e := range r.mapping(section.value, "trees") {
		if !slices.Contains(treesKeys, e.key) {
			r.add(e.at, nearest(e.key, treesKeys), "trees have no %s", e.key)
		}
		keys[e.key] = e
	}
	m := r.importModel(section, keys["model"])
	if m == nil {
		return
	}
	if m = r.output(m, section, keys); m != nil {
		p.Forest = r.bindInputs(m, section, keys["inputs"])
	}
}

// importModel reads the model file that the key model of the section names; nil after a
// fault.
func (r *specReader) importModel(section, e entry) *trees.Model {
	if e.value == nil {
		r.add(section.at, "add model: FILE", "trees without a model")
		return nil
	}
	name := r.text(e.value, "model")
	if r.open == nil {
		r.add(r.position(e.value), "read the spec from its directory", "the file %s cannot be read from here", name)
		return nil
	}
	src, err := r.open(name)
	if err != nil {
		r.add(r.position(e.value), "name a file beside the spec", "%v", err)
		return nil
	}
	m, err := trees.Import(src)
	if err != nil {
		r.add(r.position(e.value), "", "%s: %v", name, err)
		return nil
	}
	return m
}

// output applies the keys class and output to a model; nil after a fault.
func (r *specReader) output(m *trees.Model, section entry, keys map[string]entry) *trees.Model {
	if e, ok := keys["class"]; ok {
		class := r.number(e.value, "class")
		g, err := m.Class(int(class))
		if err != nil || class != float64(int(class)) {
			r.add(r.position(e.value), "", "class %v; the model has classes 0 to %d", class, m.Classes-1)
			return nil
		}
		m = g
	} else if m.Classes > 1 {
		r.add(section.at, "add class: N, from 0", "the model has %d classes, and a record has one score", m.Classes)
		return nil
	}
	if e, ok := keys["output"]; ok {
		switch out := r.text(e.value, "output"); out {
		case "raw":
			return m.Raw()
		case "linked":
		default:
			r.add(r.position(e.value), "write raw, or linked, which is the default", "no output %q", out)
		}
	}
	if m.Labels() {
		r.add(section.at, "add output: raw, for the sum of the class", "%s gives the number of a class, which is not a score", m.Objective)
	}
	return m
}

// bindInputs returns a forest whose columns are the features of the spec, in their order;
// nil after a fault.
func (r *specReader) bindInputs(m *trees.Model, section, e entry) *trees.Forest {
	names, at := m.Names, section.at
	if e.value != nil {
		names, at = nil, e.at
		for _, n := range r.list(e.value, "inputs") {
			names = append(names, r.text(n, "an input"))
		}
	}
	if len(names) != m.Inputs {
		r.add(at, "list the features of its columns under inputs:", "the model has %d columns, and %d are named", m.Inputs, len(names))
		return nil
	}
	to := make([]int, len(names))
	var features []string
	for _, x := range r.spec.Features {
		features = append(features, x.Name)
	}
	used, reads := make([]bool, len(features)), m.Used()
	for c, name := range names {
		i, ok := r.byName[name]
		if !ok {
			to[c] = -1
			if reads[c] {
				r.add(at, nearest(name, features), "the model's column %d is %s, which is not a feature", c, name)
			}
			continue
		}
		if used[i] {
			r.add(at, "", "the model has two columns %s", name)
		}
		to[c], used[i] = i, true
	}
	for i, x := range features {
		if !used[i] {
			r.add(r.spec.Features[i].at, "remove it, or name it under inputs:", "the model has no column %s", x)
		}
	}
	if len(r.problems.list) > 0 {
		return nil
	}
	return m.Renumbered(to, len(features))
}
