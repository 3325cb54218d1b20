package sample

import (
	"time"

	"github.com/millrace/millrace"
)

// End is the time of the last record: what a demo takes for now.
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
