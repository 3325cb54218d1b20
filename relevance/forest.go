package relevance

import (
	"slices"

	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/relevance/trees"
)

var treesKeys = []string{"model", "inputs", "class", "output"}

// forest reads the section trees and the model file that it names.
//
//	trees:
//	  model: home.txt     # a LightGBM or XGBoost file beside the spec
//	  inputs: [a, b]      # the features of its columns; by name if left out
//	  class: 2            # of a multiclass model
//	  output: raw         # without the objective's link
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
	f := r.importModel(section, keys["model"])
	if f == nil {
		return
	}
	if f = r.output(f, section, keys); f != nil {
		p.Forest = r.bindInputs(f, section, keys["inputs"])
	}
}

func (r *specReader) importModel(section, e entry) *trees.Forest {
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
	f, err := trees.Import(src)
	if err != nil {
		r.add(r.position(e.value), "", "%s: %v", name, err)
		return nil
	}
	return f
}

// output chooses the class and the link.
func (r *specReader) output(f *trees.Forest, section entry, keys map[string]entry) *trees.Forest {
	if e, ok := keys["class"]; ok {
		class := r.number(e.value, "class")
		g, err := f.Class(int(class))
		if err != nil || class != float64(int(class)) {
			r.add(r.position(e.value), "", "class %v; the model has classes 0 to %d", class, f.Classes-1)
			return nil
		}
		f = g
	} else if f.Classes > 1 {
		r.add(section.at, "add class: N, from 0", "the model has %d classes, and a record has one score", f.Classes)
		return nil
	}
	if e, ok := keys["output"]; ok {
		switch out := r.text(e.value, "output"); out {
		case "raw":
			return f.Raw()
		case "linked":
		default:
			r.add(r.position(e.value), "write raw, or linked, which is the default", "no output %q", out)
		}
	}
	if f.Labels() {
		r.add(section.at, "add output: raw, for the sum of the class", "%s gives the number of a class, which is not a score", f.Objective)
	}
	return f
}

// bindInputs makes the forest's columns the spec's features, in its order.
func (r *specReader) bindInputs(f *trees.Forest, section, e entry) *trees.Forest {
	names, at := f.Names, section.at
	if e.value != nil {
		names, at = nil, e.at
		for _, n := range r.list(e.value, "inputs") {
			names = append(names, r.text(n, "an input"))
		}
	}
	if len(names) != f.Inputs {
		r.add(at, "list the features of its columns under inputs:", "the model has %d columns, and %d are named", f.Inputs, len(names))
		return nil
	}
	to := make([]int, len(names))
	var features []string
	for _, x := range r.spec.Features {
		features = append(features, x.Name)
	}
	used, reads := make([]bool, len(features)), f.Used()
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
	return f.Renumber(to, len(features))
}
