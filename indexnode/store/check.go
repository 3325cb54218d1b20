package store

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// Report counts what Check saw.
type Report struct {
	// Records include tombstones, Live do not. Features are rows, one for each subject.
	Timelines, Blobs, Records, Live, Features int
	// StaleRows is how many id rows are stale. An id row says at which time the record of an
	// id is, outside of the head; it is stale if there is no such record any more. A sweep
	// removes those that retention left.
	StaleRows int
	// Miscounted is how many content types had wrong counts, which Check has corrected.
	Miscounted int
}

// Check walks a partition as it is when called, and verifies every row: the chains, the
// order of records across blobs, metadata, counts, filters, id rows, orphans, and that the
// digests follow from what is there. A fault is an [ErrCorrupt] and quarantines the
// partition. Check corrects wrong counts, which are no fault.
func (s *Store) Check(ctx context.Context, n millrace.Partition) (Report, error) {
	snap, err := s.snapshot(n)
	if err != nil {
		return Report{}, err
	}
	defer snap.Close()
	c := newChecker(ctx, n)
	for name := range snap.counted.at { // these types are counted by name, so they are here too
		c.counts[name] = &tally.Counts{}
	}
	if err = snap.failed(c.run(snap)); err == nil {
		c.report.Miscounted = s.recount(snap.p, snap.counted, c.counts)
	}
	return c.report, err
}

// recount corrects the counts of a partition by what a scan found. was has the counts at the
// moment of the scan; recount adds what was applied since. It returns how many types had wrong
// counts. It does nothing, and returns 0, if the partition was replaced or rewound since.
func (s *Store) recount(p *part, was counted, found map[millrace.ContentType]*tally.Counts) (wrong int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.usable() != nil || p.tally != was.of {
		return 0
	}
	known := p.tally.Known()
	if wrong = p.tally.Mend(was.at, found); wrong > 0 {
		s.log.Error("store: counts were wrong and are mended", "partition", p.p, "types", wrong)
	}
	p.changed = p.changed || !known || wrong > 0
	return wrong
}

// checker walks the rows of a partition in key order, timeline by timeline.
type checker struct {
	ctx    context.Context
	p      millrace.Partition
	report Report

	row    partRow
	origin []byte
	sum    Digest                                 // of the rows so far
	counts map[millrace.ContentType]*tally.Counts // of the rows so far
	here   *tally.Counts                          // counts of the type of the present timeline

	timelines timeline.Checker
}

func newChecker(ctx context.Context, n millrace.Partition) *checker {
	c := &checker{ctx: ctx, p: n, row: partRow{applied: nothingApplied}, counts: map[millrace.ContentType]*tally.Counts{}}
	c.timelines.Found = c
	return c
}

// run checks all rows of the partition.
func (c *checker) run(r pebble.Reader) error {
	start, _ := partitionSpan(c.p)
	if err := scan(r, start, c.add); err != nil {
		return err
	}
	return c.end()
}

// add checks the next row in key order.
func (c *checker) add(k, v []byte) error {
	switch k[2] {
	case kindPart:
		if len(k) != 3 {
			return blob.ErrKey
		}
		var err error
		c.row, err = decodePartRow(v)
		return err
	case kindOrigin:
		if len(k) != 3 || len(v) > MaxOriginBytes {
			return fmt.Errorf("%w: origin", blob.ErrRow)
		}
		c.origin = bytes.Clone(v)
		return nil
	case kindFeatures:
		return c.features(k, v)
	case timeline.Kind:
		return c.timelines.Add(k, v)
	}
	return fmt.Errorf("%w: of kind %#x", blob.ErrKey, k[2])
}

// end checks what holds of all rows together.
func (c *checker) end() error {
	if err := c.timelines.End(); err != nil {
		return err
	}
	c.sum.Content += c.row.dropped // the digest still counts what retention dropped
	if c.sum != c.row.digest {
		return fmt.Errorf("%w: %x is there, %x was applied", timeline.ErrDigest, c.sum, c.row.digest)
	}
	return nil
}

// features checks a row of features.
func (c *checker) features(k, v []byte) error {
	entity, subject, err := blob.CutString(k[3:])
	if err != nil {
		return err
	}
	f, err := decodeFeatures(string(subject), v)
	if err != nil {
		return fmt.Errorf("features of %s: %w", entity, err)
	}
	c.report.Features++
	c.sum.Features += featuresDigest(millrace.Entity(entity), &f)
	return nil
}

// countsOf returns the counts of a type, as [tally.Tally.Of] does. Types beyond MaxTypes are
// counted together, as type "".
func (c *checker) countsOf(t millrace.ContentType) *tally.Counts {
	if c.counts[t] == nil && len(c.counts) >= MaxTypes {
		t = ""
	}
	if c.counts[t] == nil {
		c.counts[t] = &tally.Counts{}
	}
	return c.counts[t]
}

// Timeline implements [timeline.Found].
func (c *checker) Timeline(name millrace.Timeline) error {
	c.here = c.countsOf(name.Type)
	return c.ctx.Err()
}

// Blob implements [timeline.Found].
func (c *checker) Blob(recs []millrace.Record, digest uint64) {
	for i := range recs {
		if !recs[i].Deleted {
			c.report.Live++
		}
		c.here.Scan(&recs[i])
	}
	c.report.Blobs++
	c.report.Records += len(recs)
	c.sum.Content += digest
}

// StaleRow implements [timeline.Found].
func (c *checker) StaleRow() { c.report.StaleRows++ }

// End implements [timeline.Found].
func (c *checker) End(records bool) {
	c.report.Timelines++
	if records {
		c.here.Timelines++
	}
}
