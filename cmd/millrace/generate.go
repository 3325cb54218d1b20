package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/codegen"
	"github.com/millrace/millrace/relevance"
)

func generateCommand() *cobra.Command {
	var out, pkg string
	var avsc []string
	var check bool
	c := &cobra.Command{
		Use:   "generate --out DIR SPEC.yaml|PACK...",
		Short: "Write the Go of model specs",
		Long: `Writes one Go file a spec, named for the model. A binary built with it scores
models of that shape by the generated code; any other serves them by the
interpreter, with the same scores. Coefficients, tables and trees are not in the
code: new ones need no build. Of a pack only a directory will do.`,
		Example: "  millrace generate --out relevance/models relevance/specs/*.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			specs := make([]codegen.Spec, len(args))
			for i, name := range args {
				if info, err := os.Stat(name); err != nil {
					return err
				} else if info.IsDir() {
					name = filepath.Join(name, relevance.SpecFile)
				}
				specs[i] = codegen.Spec{Name: filepath.Base(name), Dir: os.DirFS(filepath.Dir(name))}
			}
			known := relevance.ShippedSchemas()
			for _, file := range avsc {
				s, err := readSchema(file)
				if err != nil {
					return err
				}
				known[s.Name()] = s.Layout()
			}
			files, err := codegen.Generate(pkg, known, specs...)
			if err != nil {
				return err
			}
			for _, f := range files {
				path := filepath.Join(out, f.Name)
				if check {
					if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, f.Text) {
						return fmt.Errorf("%s is stale; run millrace generate", path)
					}
					continue
				}
				if err := os.WriteFile(path, f.Text, 0o644); err != nil {
					return err
				}
				fmt.Fprintln(c.OutOrStdout(), path)
			}
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", ".", "directory of the Go files")
	c.Flags().StringVar(&pkg, "package", "models", "the Go files' package")
	c.Flags().StringSliceVar(&avsc, "schema", nil, ".avsc files that the specs name, beside those that ship")
	c.Flags().BoolVar(&check, "check", false, "write nothing; fail if a file is not what would be written")
	return c
}
