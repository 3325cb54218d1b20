package export

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"math"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
)

// Item is a row of an export: an item beside its answer, or an answer that
// showed nothing. docs/experiments.md says what the columns are.
type Item struct {
	Answer            string    `parquet:"answer_id,dict" json:"answer_id"`
	Time              time.Time `parquet:"time,timestamp(millisecond)" json:"time"`
	Viewer            string    `parquet:"viewer,dict" json:"viewer"`
	Feed              string    `parquet:"feed,dict" json:"feed"`
	FeedVersion       int64     `parquet:"feed_version" json:"feed_version"`
	Broker            string    `parquet:"broker,dict" json:"broker"`
	AsOf              time.Time `parquet:"as_of,timestamp(millisecond)" json:"as_of"`
	TimelinesAsked    int64     `parquet:"timelines_asked" json:"timelines_asked"`
	TimelinesAnswered int64     `parquet:"timelines_answered" json:"timelines_answered"`
	Millis            float64   `parquet:"millis" json:"millis"`
	Refusal           string    `parquet:"refusal,dict" json:"refusal"`
	Experiments       []Variant `parquet:"experiments,list" json:"experiments"`
	HeldOut           []string  `parquet:"held_out,list" json:"held_out"`
	DraftSeed         *int64    `parquet:"draft_seed,optional" json:"draft_seed"`
	Items             *int64    `parquet:"items,optional" json:"items"` // how many items the answer showed; null in files of versions that did not write it

	// These columns are of the item; all are null or empty if nothing was shown. Score is
	// null for NaN. Team, the model that chose the item, is null unless two models took
	// turns to choose the page's items. CopyOf is null for the first copy of a record.
	Place         *int64    `parquet:"place,optional" json:"place"` // in the feed, from 1
	ID            *string   `parquet:"id,optional" json:"id"`
	Entity        *string   `parquet:"entity,optional,dict" json:"entity"`
	Type          *string   `parquet:"type,optional,dict" json:"type"`
	Score         *float64  `parquet:"score,optional" json:"score"`
	Model         *string   `parquet:"model,optional,dict" json:"model"`
	ModelVersion  *string   `parquet:"model_version,optional,dict" json:"model_version"`
	ModelChecksum *string   `parquet:"model_checksum,optional,dict" json:"model_checksum"`
	Team          *string   `parquet:"team,optional,dict" json:"team"`
	CopyOf        *int64    `parquet:"copy_of,optional" json:"copy_of"` // the place of the same record on the page, further up
	Outcomes      []Outcome `parquet:"outcomes,list" json:"outcomes"`
	Features      []Feature `parquet:"features,list" json:"features"`
}

// Variant is what an experiment gave the viewer or an entity.
type Variant struct {
	Layer             string  `parquet:"layer,dict" json:"layer"`
	Experiment        string  `parquet:"experiment,dict" json:"experiment"`
	Variant           string  `parquet:"variant,dict" json:"variant"`
	Unit              string  `parquet:"unit,dict" json:"unit"`
	Checksum          string  `parquet:"checksum,dict" json:"checksum"`
	Probability       float64 `parquet:"probability" json:"probability"`
	ProbabilityInside float64 `parquet:"probability_inside" json:"probability_inside"`
	Forced            bool    `parquet:"forced" json:"forced"`
}

// Feature is one value that the model ranked by: a number or a text. If both are null, the
// item had no value.
type Feature struct {
	Name   string   `parquet:"name,dict" json:"name"`
	Number *float64 `parquet:"number,optional" json:"number"`
	Text   *string  `parquet:"text,optional,dict" json:"text"`
}

// Outcome says how often a viewer did one action with an item, such as a click, and when
// first.
type Outcome struct {
	Action string    `parquet:"action,dict" json:"action"`
	Count  int64     `parquet:"count" json:"count"`
	First  time.Time `parquet:"first,timestamp(millisecond)" json:"first"`
}

// appendShown appends the rows of an answer: one for each item, or one if it showed none.
// done has the outcomes by the place of their item.
func appendShown(rows []Item, r *exposure.Record, done map[outcome.Place][]outcome.Done) []Item {
	answer := Item{
		Answer: r.ID, Time: timeOf(r.Time), Viewer: r.Viewer, Feed: r.Feed, FeedVersion: r.FeedVersion, Broker: r.Broker, AsOf: timeOf(r.AsOf),
		TimelinesAsked: int64(r.TimelinesAsked), TimelinesAnswered: int64(r.TimelinesAnswered), Millis: r.Millis, Refusal: r.Refusal,
		Experiments: []Variant{}, HeldOut: append([]string{}, r.HeldOut...), Outcomes: []Outcome{}, Features: []Feature{},
	}
	items := int64(len(r.Items))
	answer.Items = &items
	for _, e := range r.Experiments {
		answer.Experiments = append(answer.Experiments, Variant(e))
	}
	if d := r.Interleaving; d != nil {
		seed := int64(d.Seed)
		answer.DraftSeed = &seed
	}
	if len(r.Items) == 0 {
		return append(rows, answer)
	}
	first := map[string]int{} // by record id, its first place in this answer
	for i := range r.Items {
		it := &r.Items[i]
		row, place, m := answer, int64(r.ServedBefore+it.Place), &r.Models[it.Model]
		row.Place, row.ID, row.Entity, row.Type = &place, &it.ID, &it.Entity, &it.Type
		row.Model, row.ModelVersion, row.ModelChecksum = &m.Name, &m.Version, &m.Checksum
		if !math.IsNaN(it.Score) {
			row.Score = &it.Score
		}
		if it.Team >= 0 {
			row.Team = &r.Interleaving.Teams[it.Team]
		}
		at, again := first[it.ID] // each copy's row has the record's outcomes, so readers must only count rows whose CopyOf is null
		if again {
			above := int64(r.ServedBefore + at)
			row.CopyOf = &above
		} else {
			at = it.Place
			first[it.ID] = at
		}
		for _, d := range done[outcome.Place{Answer: r.ID, Place: at}] {
			row.Outcomes = append(row.Outcomes, Outcome{d.Action, int64(d.Count), timeOf(d.First)})
		}
		for k, v := range it.Features {
			f := Feature{Name: m.Features[k]}
			switch {
			case v.IsText:
				f.Text = &v.Text
			case !math.IsNaN(v.Number):
				f.Number = &v.Number
			}
			row.Features = append(row.Features, f)
		}
		rows = append(rows, row)
	}
	return rows
}

func timeOf(t millrace.Time) time.Time { return time.UnixMilli(int64(t)).UTC() }

// RowWriter writes rows to a file.
type RowWriter interface {
	Write([]Item) error
	Close() error
}

// itemSchema is the Parquet schema of Item. Files contain its name, which must not change.
var itemSchema = parquet.NewSchema("shownItem", parquet.SchemaOf(Item{}))

// RowsTo returns a writer of rows to w: as NDJSON if form is "ndjson", else as Parquet. The
// caller must close it, and then w.
func RowsTo(w io.Writer, form string) RowWriter {
	if form == "ndjson" {
		buffered := bufio.NewWriter(w)
		return &jsonRows{buffered, json.NewEncoder(buffered)}
	}
	to := &sealing{w: w, sum: sha256.New()}
	return parquetRows{parquet.NewGenericWriter[Item](to, itemSchema, parquet.Compression(&parquet.Zstd), parquet.MaxRowsPerRowGroup(maxGroupRows),
		parquet.CreatedBy(writer, "1", ""), parquet.KeyValueMetadata(sealKey, noSum)), to}
}

// maxGroupRows is the most rows of a Parquet row group, which is kept in memory until it is
// written.
const maxGroupRows = 100_000

// parquetRows is the RowWriter of Parquet files.
type parquetRows struct {
	*parquet.GenericWriter[Item]
	to *sealing
}

func (p parquetRows) Write(rows []Item) error {
	_, err := p.GenericWriter.Write(rows)
	return err
}

func (p parquetRows) Close() error {
	if err := p.Flush(); err != nil { // only the footer is written after this; sealing keeps it in memory, to put the checksum into it
		return err
	}
	p.to.last = &bytes.Buffer{}
	if err := p.GenericWriter.Close(); err != nil {
		return err
	}
	return p.to.seal()
}

// jsonRows is the RowWriter of NDJSON: a line of JSON for each row.
type jsonRows struct {
	w *bufio.Writer
	*json.Encoder
}

func (j *jsonRows) Write(rows []Item) (err error) {
	for i := range rows {
		err = errors.Join(err, j.Encode(&rows[i]))
	}
	return err
}

func (j *jsonRows) Close() error { return j.w.Flush() }
