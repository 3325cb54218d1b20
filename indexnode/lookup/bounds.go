package lookup

import (
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
)

// What a question may take. The memory that it holds beside the caches is a loan from the
// node's budget for questions, until its answer is handed to gRPC. The loan covers what the
// question reads from the store, timelineBytes for each timeline, and its answer.
const (
	// maxReadBytes bounds what a question reads of one timeline in one read.
	maxReadBytes = 64 << 20
	readTimes    = 3 // copies of what is read: as it is stored, in columns, and packed
	// maxCachedBytes is about how many bytes of a timeline's newest records are read into
	// the cache at most, even if these are fewer than maxCached records.
	maxCachedBytes = 8 << 20
	// maxTimelines bounds entities times types.
	maxTimelines  = 500_000
	timelineBytes = 128 // what a question holds for each timeline beside its records, about

	// MaxTypes is how many types a question names at most.
	MaxTypes = 100
)

// grant returns a function that a read of a timeline asks before it reads more bytes. It
// refuses beyond maxReadBytes, and when there is no memory for questions left.
func (r *Resolution) grant(t millrace.Timeline) store.Grant {
	read, loan := 0, r.loan
	return func(bytes int) error {
		if read += bytes; read > maxReadBytes {
			return &millrace.Error{
				Reason: millrace.ReasonTooLarge, Field: "entities", Detail: fmt.Sprintf("%.70q has more than %d bytes of records of type %s in the window, too many to read for one request", t.Entity, maxReadBytes, t.Type),
				WayOut: "narrow the window by from and to, or leave this entity out",
			}
		}
		return loan.More(int64(readTimes * bytes))
	}
}

// Affordable refuses a question for more than most timelines. It has a timeline for each of
// its entities and each type; types is how many types there are.
func (r *Resolution) Affordable(types, most int) error {
	entities := len(r.entities)
	if entities*types <= most {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonTooLarge, Field: "entities", Detail: fmt.Sprintf("%d entities of %d types are more than %d timelines", entities, types, most),
		WayOut: "ask for fewer entities, or name fewer types",
	}
}
