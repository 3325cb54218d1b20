// Package trained holds small models that LightGBM and XGBoost trained on synthetic data,
// with what the libraries predict for difficult rows: with values on and beside
// thresholds, missing and infinite values, and unknown categories. It is for tests.
//
// train.py trains the models. train.sh makes the archive anew: it runs train.py with versions
// of the libraries from many years.
package trained

import (
	"archive/tar"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

//go:embed models.tar.zst
var archive []byte

// Columns is how many inputs every model has.
const Columns = 6

// Model is a model and what its library says of some rows.
type Model struct {
	Name   string      // LIBRARY-VERSION/NAME
	File   []byte      // as the library saved it
	Rows   [][]float64 // rows of inputs
	Raw    [][]float64 // by row and class, the scores before the link function
	Scores [][]float64 // by row and class, as the library predicts them
	Leaves [][]float64 // by row and tree; empty for linear boosters
}

// Single reports whether the library computes in float32.
func (m *Model) Single() bool { return strings.HasPrefix(m.Name, "xgboost") }

// Models returns the models of the archive.
func Models() ([]*Model, error) { return Read(bytes.NewReader(archive)) }

// Read reads an archive that train.sh made, or one like it.
func Read(r io.Reader) ([]*Model, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(256<<20))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	var list []*Model
	byName := map[string]*Model{}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		body, err := io.ReadAll(t)
		if err != nil {
			return nil, err
		}
		file := path.Clean(h.Name)
		name := strings.TrimSuffix(file, path.Ext(file))
		m := byName[name]
		if m == nil {
			m = &Model{Name: name}
			byName[name], list = m, append(list, m)
		}
		if path.Ext(file) != ".want" {
			m.File = body
		} else if err := m.want(string(body)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
}

// want reads lines of inputs, raw scores, scores and leaves, with "|" between these four.
func (m *Model) want(text string) error {
	for line := range strings.Lines(text) {
		parts := strings.Split(strings.TrimSpace(line), "|")
		if len(parts) != 4 {
			return fmt.Errorf("a line of %d parts", len(parts))
		}
		for i, to := range []*[][]float64{&m.Rows, &m.Raw, &m.Scores, &m.Leaves} {
			var row []float64
			for _, w := range strings.Fields(parts[i]) {
				x, err := strconv.ParseFloat(w, 64)
				if err != nil {
					return err
				}
				row = append(row, x)
			}
			*to = append(*to, row)
		}
	}
	return nil
}
