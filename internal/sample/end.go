package sample

import (
	"time"

	"github.com/millrace/millrace"
)

// End returns the time of the last record, which demos take for the present time.
func End() millrace.Time {
	var last []byte
	for line := range Records() {
		last = line
	}
	var r struct {
		CreatedAt time.Time `json:"created_at"`
	}
	parse(last, &r)
	return millrace.TimeOf(r.CreatedAt)
}
