package dev

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/codegen"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas/registry"
)

// Generate returns the command generate, which writes the Go code of models, feeds and
// schemas.
func Generate() *cobra.Command {
	var g generation
	var check bool
	c := &cobra.Command{
		Use:   "generate [--out DIR SPEC.yaml|PACK...]",
		Short: "Write the Go of model specs, feeds and decoders",
		Long: `In a module that "millrace init" made, it reads schemas/*.avsc,
models/*/spec.yaml and feeds/*.yaml, writes their Go to gen/, removes what it
wrote there of sources that are gone, and seals the models. Of schemas of one
name, which come into use in the order of their files' names, the last gets a
decoder.

Elsewhere it writes what is named, one Go file a spec, named for the model. A binary built with it scores
models of that shape by the generated code; any other serves them by the
interpreter, with the same scores. Coefficients, tables and trees are not in the
code: new ones need no build. Of a pack only a directory will do.

With --feed it writes the filter of a feed's definition, as far as its terms
compare columns with constants or with the instant. A binary built with it runs
them by the code, alone or joined with the filter of a request; what it drops,
and how it counts that, does not change. If the definition names models for
shadow it writes them and the feed's model as one function, which computes once
what they share; they are looked for among the specs named and those built in.

With --decoder it writes the decoder of a schema's records into columns. A
binary built with it decodes them some three times as fast.`,
		Example: `  millrace generate
  millrace generate --check
  millrace generate --out relevance/models relevance/specs/*.yaml
  millrace generate --out relevance/models --feed jobs.yaml
  millrace generate --out schemas/decoders --package decoders --decoder review.avsc`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args)+len(g.feeds)+len(g.decoders)+len(g.avsc) == 0 && !c.Flags().Changed("out") {
				m, err := openModule(".")
				if err != nil {
					return err
				}
				return m.generate(c.OutOrStdout(), check)
			}
			files, err := g.files(args)
			if err != nil {
				return err
			}
			for _, f := range files {
				if check {
					err = checkGenerated(g.out, f)
				} else {
					err = writeGenerated(c.OutOrStdout(), g.out, f)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&g.out, "out", ".", "directory of the Go files")
	c.Flags().StringVar(&g.pkg, "package", "models", "the Go files' package")
	c.Flags().StringSliceVar(&g.avsc, "schema", nil, ".avsc files that the specs and filters name, beside those that ship")
	c.Flags().StringSliceVar(&g.feeds, "feed", nil, "feed definitions whose filters, and models with their shadows, to write")
	c.Flags().StringSliceVar(&g.decoders, "decoder", nil, ".avsc files whose decoders to write")
	c.Flags().BoolVar(&check, "check", false, "write nothing; fail if a file is not what would be written, or a model not what was sealed")
	return c
}

// generation is what the command generate is asked to write.
type generation struct {
	out, pkg              string   // directory and package of the Go files
	avsc, feeds, decoders []string // files, as the flags --schema, --feed and --decoder name them
	module                bool     // the code is for a whole module, which may have nothing to generate
}

// files returns the generated code of specs, which are files or directories of packs, and of
// the feeds and decoders.
func (g *generation) files(specs []string) ([]codegen.File, error) {
	if len(specs)+len(g.feeds)+len(g.decoders) == 0 && !g.module {
		return nil, errors.New("nothing to generate; name specs or packs, a feed's definition by --feed, or a schema by --decoder")
	}
	sources, err := specSources(specs)
	if err != nil {
		return nil, err
	}
	known, err := schemafiles.Snapshot(g.avsc)
	if err != nil {
		return nil, err
	}
	layouts := relevance.SchemasOf(known)
	files, err := codegen.Generate(g.pkg, layouts, sources...)
	if err != nil {
		return nil, ofOne(err, specs, sources, layouts)
	}
	for _, name := range g.feeds {
		f, err := g.feed(name, known, layouts, sources)
		if errors.Is(err, codegen.ErrNothing) && g.module {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		files = append(files, f)
	}
	for _, file := range g.decoders {
		s, err := schemafiles.Read(file)
		if err != nil {
			return nil, err
		}
		f, err := codegen.GenerateDecoder(g.pkg, file, s)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// ofOne returns the error of several specs as that of the first one at fault, by its own
// name: all may be files spec.yaml.
func ofOne(err error, specs []string, sources []codegen.Spec, layouts relevance.Schemas) error {
	for i, s := range sources {
		if _, fault := relevance.ParseFile(s.Dir, s.Name, layouts); fault != nil && len(sources) > 1 {
			return fmt.Errorf("%s: %w", specs[i], fault)
		}
	}
	return err
}

// specSources returns where the specs are that names name: files, or directories of packs.
func specSources(names []string) ([]codegen.Spec, error) {
	sources := make([]codegen.Spec, len(names))
	for i, name := range names {
		if info, err := os.Stat(name); err != nil {
			return nil, err
		} else if info.IsDir() {
			name = filepath.Join(name, modelpack.SpecFile)
		}
		sources[i] = codegen.Spec{Name: filepath.Base(name), Dir: os.DirFS(filepath.Dir(name))}
	}
	return sources, nil
}

// feed returns the generated code of the feed that is defined in the file name. sources are
// where models are looked for before the built-in ones.
func (g *generation) feed(name string, known *registry.Snapshot, layouts relevance.Schemas, sources []codegen.Spec) (codegen.File, error) {
	text, err := document.ReadFile(name)
	if err != nil {
		return codegen.File{}, err
	}
	def, err := feeds.Parse(text)
	if err != nil {
		return codegen.File{}, err
	}
	f := codegen.Feed{Name: def.Name, File: filepath.Base(name)}
	if def.Filter != "" {
		env := filter.EnvOf(known)
		if f.Filter, err = filter.Compile(def.Filter, env); err != nil {
			return codegen.File{}, err
		}
		f.Records = env.Record
	}
	if len(def.Shadow) > 0 {
		if f.Models, err = namedModels(append([]string{def.Model}, def.Shadow...), layouts, sources); err != nil {
			return codegen.File{}, err
		}
	}
	return codegen.GenerateFeed(g.pkg, layouts, f)
}

// namedModels returns the models of these names, in their order. It takes a model from
// sources if one of them has the name, and otherwise a built-in one.
func namedModels(names []string, layouts relevance.Schemas, sources []codegen.Spec) ([]*relevance.Model, error) {
	own := map[string]*relevance.Model{}
	for _, s := range sources {
		m, err := relevance.ParseFile(s.Dir, s.Name, layouts)
		if err != nil {
			return nil, err
		}
		own[m.Name()] = m
	}
	models := make([]*relevance.Model, len(names))
	for i, name := range names {
		if models[i] = own[name]; models[i] != nil {
			continue
		}
		m, err := relevance.Builtin().Get(name)
		if err != nil {
			return nil, fmt.Errorf("%w; or name its spec or pack too", err)
		}
		models[i] = m
	}
	return models, nil
}

// checkGenerated returns an error if the file in dir is not as f would be written now.
func checkGenerated(dir string, f codegen.File) error {
	path := filepath.Join(dir, f.Name)
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, f.Text) {
		return fmt.Errorf("%s is stale; run millrace generate", path)
	}
	return nil
}

// writeGenerated writes f into dir and prints its path. It refuses to overwrite a file that
// millrace generate did not write.
func writeGenerated(w io.Writer, dir string, f codegen.File) error {
	path := filepath.Join(dir, f.Name)
	if have, err := os.ReadFile(path); err == nil && !isGenerated(have) {
		return fmt.Errorf("%s is not generated code; move it, or write elsewhere by --out", path)
	}
	if err := os.WriteFile(path, f.Text, 0o644); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, path)
	return err
}

func isGenerated(text []byte) bool {
	return bytes.HasPrefix(text, []byte("// Code generated by millrace generate "))
}
