package models

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/cmd/cli/export"
)

// read reads the file of exposures and takes each of its answers, whose rows must be next to
// each other.
func (r *replay) read(ctx context.Context) error {
	f, err := os.Open(r.file)
	if err != nil {
		return err
	}
	defer f.Close()
	next, err := shownRows(f)
	if errors.Is(err, errDamaged) {
		return r.damaged(err)
	}
	if err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s: %v", r.file, err), WayOut: notExported}
	}
	var page []export.Item
	answer, held := "", 0 // the id of the page's answer, and how many bytes the texts of the page have
	for n := 1; ; n++ {
		row, err := next()
		if errors.Is(err, errDamaged) {
			return r.damaged(err)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return r.badRow(n, err.Error(), notExported)
		}
		begins := err == nil && (n == 1 || row.Answer != answer)
		if (begins || err != nil) && len(page) > 0 {
			if err := r.take(page); err != nil {
				return fmt.Errorf("%s, the answer before row %d: %w", r.file, n, err)
			}
			clear(page)
			page, held = page[:0], 0
		}
		if err != nil {
			r.settle()
			return nil
		}
		bytes, err := textsOf(&row)
		if err = cmp.Or(err, impossible(&row)); err != nil {
			return r.badRow(n, err.Error(), notExported)
		}
		if begins {
			if err := r.begin(&row, n); err != nil {
				return err
			}
			answer = row.Answer
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if row.ID == nil {
			continue
		}
		if held += bytes; held > maxPageBytes || len(page) == limits.MaxLimit {
			return r.badRow(n, fmt.Sprintf("the rows of its answer, of which it is the %dth, are more than %d or have more than %d bytes of texts", len(page)+1, limits.MaxLimit, maxPageBytes), notExported)
		}
		page = append(page, row)
	}
}

// The bounds of what is read, in bytes. No file that export wrote comes near them. Without
// bounds, a small Parquet file could need much memory: it has a text once, however many rows
// have it, and each row that is read has a copy.
const (
	maxNameBytes = 512      // of an id or a name
	maxPageBytes = 64 << 20 // of all texts in the rows of one answer
)

const notExported = "name a file that millrace export exposures wrote"

// textsOf returns how many bytes the texts of a row have. The error is about a text that is
// longer than its column may be in an exposure.
func textsOf(row *export.Item) (bytes int, err error) {
	long := func(column string, most int, texts ...*string) {
		for _, text := range texts {
			if text == nil {
				continue
			}
			if bytes += len(*text); len(*text) > most && err == nil {
				err = fmt.Errorf("its %s has %d bytes, more than %d", column, len(*text), most)
			}
		}
	}
	for _, x := range []struct {
		column string
		text   *string
	}{
		{"answer_id", &row.Answer}, {"viewer", &row.Viewer}, {"feed", &row.Feed}, {"broker", &row.Broker}, {"refusal", &row.Refusal}, {"id", row.ID}, {"entity", row.Entity},
		{"type", row.Type}, {"model", row.Model}, {"model_version", row.ModelVersion}, {"model_checksum", row.ModelChecksum}, {"team", row.Team},
	} {
		long(x.column, maxNameBytes, x.text)
	}
	for i := range row.HeldOut {
		long("held_out", maxNameBytes, &row.HeldOut[i])
	}
	for i := range row.Experiments {
		e := &row.Experiments[i]
		long("experiments", maxNameBytes, &e.Layer, &e.Experiment, &e.Variant, &e.Checksum)
		long("experiments.unit", limits.MaxAttributeBytes, &e.Unit)
	}
	for i := range row.Outcomes {
		long("outcomes.action", maxNameBytes, &row.Outcomes[i].Action)
	}
	for i := range row.Features {
		long("features.name", maxNameBytes, &row.Features[i].Name)
		long("features.text", millrace.MaxBodyBytes, row.Features[i].Text)
	}
	return bytes, err
}

// impossible returns an error if a number of a row that replay uses is one that no answer can
// have.
func impossible(row *export.Item) error {
	if row.Place != nil && *row.Place < 1 {
		return fmt.Errorf("its place is %d, and places begin at 1", *row.Place)
	}
	if row.Items != nil && (*row.Items < 0 || *row.Items > limits.MaxLimit) {
		return fmt.Errorf("its answer has %d items, and no answer has more than %d", *row.Items, limits.MaxLimit)
	}
	if row.ID != nil && row.Place == nil {
		return errors.New("it has an item without a place")
	}
	for _, o := range row.Outcomes {
		if o.Count < 1 {
			return fmt.Errorf("its outcome %.100q has the count %d, and what is there came once at least", o.Action, o.Count)
		}
	}
	for _, e := range row.Experiments {
		if !(e.ProbabilityInside >= 0 && e.ProbabilityInside <= 1) {
			return fmt.Errorf("probability_inside of experiment %.100q is %v, which is no chance", e.Experiment, e.ProbabilityInside)
		}
	}
	return nil
}

// begin notes that a row, the nth of the file, is the first of its answer. It refuses an
// answer that the file had before: its rows would count as two pages.
func (r *replay) begin(row *export.Item, n int) error {
	place := int64(0)
	if row.Place != nil {
		place = *row.Place
	}
	before, again := r.begun[row.Answer]
	switch {
	case again && before == place:
		return r.twice(row.Answer, place, n)
	case again:
		return r.badRow(n, fmt.Sprintf("it is of answer %s, of which rows stand further up, before other answers", row.Answer), "sort the rows by answer_id and place, so that those of an answer stand together")
	}
	r.begun[row.Answer], r.latest, r.should = place, 0, -1
	return nil
}

// twice returns the error for an answer that begins a second time, at row n, with the same
// place.
func (r *replay) twice(answer string, place int64, n int) error {
	return r.badRow(n, fmt.Sprintf("place %d of answer %s has been there before", place, answer), "give each answer once: the file has rows of one export twice, or of two exports whose times overlap")
}

func (r *replay) badRow(n int, detail, wayOut string) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s, row %d: %s", r.file, n, detail), WayOut: wayOut}
}

func (r *replay) damaged(err error) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s: %v", r.file, err), WayOut: "export it once more, or name another file that millrace export exposures wrote"}
}

// errDamaged is the error for a file whose parts contradict each other, or that the command
// export did not write.
var errDamaged = errors.New("it is damaged, or no file of rows as an export has them")

// orDamaged, deferred, turns a panic into errDamaged. The library that reads Parquet does not
// check the numbers of a file, and panics with wrong ones.
func orDamaged(err *error) {
	if why := recover(); why != nil {
		*err = fmt.Errorf("%w: %v", errDamaged, why)
	}
}

// isNDJSON reports whether a file is NDJSON, whatever its name: NDJSON begins with an object,
// and Parquet does not begin with {. For an empty file it goes by the name.
func isNDJSON(f *os.File) bool {
	var first [1]byte
	if n, _ := f.ReadAt(first[:], 0); n == 0 {
		return strings.HasSuffix(f.Name(), ".ndjson")
	}
	return first[0] == '{'
}

// shownRows returns a function that returns the rows of a file that export.RowsTo has
// written, one after the other, and io.EOF after the last one. An error that is errDamaged is
// about the content of the file.
func shownRows(f *os.File) (next func() (export.Item, error), err error) {
	defer orDamaged(&err)
	if isNDJSON(f) {
		d := json.NewDecoder(f)
		return func() (row export.Item, err error) {
			err = d.Decode(&row)
			return row, err
		}, nil
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return nil, err
	}
	for _, group := range file.Metadata().RowGroups {
		for i := range group.Columns { // LZ4 is refused: for it the library takes as much memory as the file says that a column needs
			if codec := group.Columns[i].MetaData.Codec; codec == format.Lz4 || codec == format.Lz4Raw {
				return nil, fmt.Errorf("%w: a column is compressed by %s, as no export is", errDamaged, codec)
			}
		}
	}
	if err := export.CheckSeal(file); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	rows := parquet.NewGenericReader[export.Item](file)
	one := make([]export.Item, 1)
	return func() (row export.Item, err error) {
		defer orDamaged(&err)
		clear(one)
		n, err := rows.Read(one)
		switch {
		case n == 1:
			return one[0], nil
		case err == nil:
			return row, fmt.Errorf("%w: it ends before its last row", errDamaged)
		}
		return row, err
	}, nil
}
