package export

import (
	"bytes"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
)

// What a viewer did with a record they did with each copy of it on the page, and the
// copies say which is the first.
func TestCopiesOnAPage(t *testing.T) {
	item := func(place int, id, entity string) exposure.Item {
		return exposure.Item{Place: place, ID: id, Entity: entity, Type: "post", Team: -1}
	}
	r := &exposure.Record{
		ID: "a", Feed: "home", ServedBefore: 20, Models: []exposure.Model{{Name: "home"}},
		Items: []exposure.Item{item(1, "x", "member:1"), item(2, "y", "member:1"), item(3, "x", "member:2"), item(4, "x", "member:3")},
	}
	rows := appendShown(nil, r, map[outcome.Place][]outcome.Done{{Answer: "a", Place: 1}: {{Action: "click", Count: 2}}})
	for i, want := range []struct{ copyOf, clicks int64 }{{0, 2}, {0, 0}, {21, 2}, {21, 2}} {
		row, copyOf, clicks := rows[i], int64(0), int64(0)
		if row.CopyOf != nil {
			copyOf = *row.CopyOf
		}
		for _, o := range row.Outcomes {
			clicks += o.Count
		}
		if copyOf != want.copyOf || clicks != want.clicks || *row.Items != 4 {
			t.Errorf("row %d: copy of %d, %d clicks; want %+v", i, copyOf, clicks, want)
		}
	}
}

// A file of before this column is read all the same.
func TestFilesWithoutCopies(t *testing.T) {
	type before struct {
		Answer string `parquet:"answer_id,dict"`
		Place  *int64 `parquet:"place,optional"`
	}
	var file bytes.Buffer
	place := int64(3)
	if err := parquet.Write(&file, []before{{"a", &place}}); err != nil {
		t.Fatal(err)
	}
	rows, err := parquet.Read[Item](bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil || len(rows) != 1 || rows[0].Answer != "a" || rows[0].CopyOf != nil || rows[0].Items != nil || *rows[0].Place != 3 {
		t.Errorf("%v, %+v", err, rows)
	}
}
