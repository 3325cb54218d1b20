package dev

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/version"
)

// templates are the files of a module, as init writes them. Their names end in .tmpl,
// since a file named go.mod would make template/ a Go module of its own, which go:embed
// leaves out.
//
//go:embed template
var templates embed.FS

// goVersion is the version of Go that Millrace's go.mod requires. A new module requires the
// same.
const goVersion = "1.26.0"

// moved are the files that have another path in a module than among the templates: the path
// in the module, by the path among the templates.
var moved = map[string]string{"gitignore": ".gitignore", "workflows/check.yaml": ".github/workflows/check.yaml"}

// Init returns the command init, which writes a module for a team.
func Init() *cobra.Command {
	var s scaffold
	c := &cobra.Command{
		Use:   "init DIR",
		Short: "Write a module of your own, for your schemas, models and feeds",
		Long: `Writes a Go module to a new directory: a schema, a model with golden rows, a
feed and some records to begin from; the Go generated from them; a main.go of a
few lines, whose binary is millrace with that code in it; a Makefile, a CI file
and a README. Replace the schema, the model and the feed by yours.

It needs Go, and make. The module requires the release of Millrace that this
binary is of; one that was built in a checkout is of none, and is told where the
checkout is by --replace. In a workspace (go.work) run "go work use DIR" first.`,
		Example: `  millrace init --module git.example.org/feeds/ranking ranking
  millrace init --replace ../millrace ranking`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return s.write(c.OutOrStdout(), args[0]) },
	}
	c.Flags().StringVar(&s.Module, "module", "", "the module's path (default example.org/DIR)")
	c.Flags().StringVar(&s.Replace, "replace", "", "a checkout of Millrace, to build with instead of a release")
	return c
}

// scaffold is what init fills into the templates: the path of the module (Module) and its
// last element (Name), the checkout of Millrace that go.mod is to replace the release with
// (Replace, "" for none), the version of Millrace and of Go that go.mod requires, and the
// path of Millrace's own module (Millrace).
type scaffold struct{ Module, Replace, Name, Version, Go, Millrace string }

// write writes the module to dir, which must be new or empty, and generates its code. It
// prints to w what to do next.
func (s scaffold) write(w io.Writer, dir string) error {
	if have, err := os.ReadDir(dir); err == nil && len(have) > 0 {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "DIR", Detail: fmt.Sprintf("%s is not empty: it has %s", dir, have[0].Name()), WayOut: "name a directory that is new or empty"}
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := s.complete(dir); err != nil {
		return err
	}
	if err := fs.WalkDir(templates, "template", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		return s.file(dir, name)
	}); err != nil {
		return err
	}
	if s.Replace != "" { // the checkout's go.sum has the checksums of all that the module needs
		sums, err := os.ReadFile(filepath.Join(s.Replace, "go.sum"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644)
		}
		if err != nil {
			return err
		}
	}
	m, err := openModule(dir)
	if err != nil {
		return err
	}
	if err := m.generate(io.Discard, false); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, `%s is the module %s, with Millrace %s

  cd %s
  make generate   # first, and after each change of a schema, a model or a feed
  make dev        # a cluster with them in it, served by your binary

README.md says what is where, and how to ask for the feed.
`, dir, s.Module, cmp.Or(s.Replace, s.Version), dir)
	return err
}

// modulePath matches the path of a Go module, and releaseTag the version of a release.
var (
	modulePath = regexp.MustCompile(`^[a-z0-9][a-z0-9._~-]*(/[A-Za-z0-9][A-Za-z0-9._~-]*)*$`)
	releaseTag = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
)

// complete fills in the fields that the command line does not give, and checks those that
// it gives.
func (s *scaffold) complete(dir string) error {
	at, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	s.Go, s.Millrace, s.Version = goVersion, version.Module, version.Here()
	s.Module = cmp.Or(s.Module, "example.org/"+filepath.Base(at))
	s.Name = path.Base(s.Module)
	if !modulePath.MatchString(s.Module) || s.Module == version.Module || slices.Contains(strings.Split(s.Module, "/"), "vendor") {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--module", Detail: fmt.Sprintf("%q is no path of a module of yours", s.Module), WayOut: "name it as git.example.org/team/ranking"}
	}
	released := releaseTag.MatchString(s.Version)
	if s.Replace == "" {
		if !released {
			return &millrace.Error{
				Reason: millrace.ReasonInvalid, Field: "--replace", Detail: fmt.Sprintf("this millrace is %s: it was built in a checkout, which go.mod cannot require", s.Version),
				WayOut: "name the checkout by --replace, or use the millrace of a release",
			}
		}
		return nil
	}
	if !released {
		s.Version = "v0.0.0" // go.mod needs some version to replace
	}
	if s.Replace, err = filepath.Abs(s.Replace); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(s.Replace, "go.mod"))
	if err != nil || !strings.HasPrefix(string(text), "module "+version.Module+"\n") {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--replace", Detail: fmt.Sprintf("%s is no checkout of %s", s.Replace, version.Module), WayOut: "name the directory that has its go.mod"}
	}
	return nil
}

// file fills in one template and writes its file below dir.
func (s *scaffold) file(dir, name string) error {
	text, err := templates.ReadFile(name)
	if err != nil {
		return err
	}
	t, err := template.New(name).Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(string(text))
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, s); err != nil {
		return err
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "template/"), ".tmpl")
	file := filepath.Join(dir, cmp.Or(moved[name], name))
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, b.Bytes(), 0o644))
}
