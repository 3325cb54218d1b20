package operate

import (
	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// recordLine is a record of a timeline as JSON.
type recordLine struct {
	Entity  string   `json:"entity"`
	Type    string   `json:"type"`
	ID      string   `json:"id"`
	Time    string   `json:"time"`
	Version int64    `json:"version"`
	Object  string   `json:"object,omitempty"`
	Deleted bool     `json:"deleted,omitempty"`
	Schema  string   `json:"schema,omitempty"`
	Record  jsonText `json:"record,omitempty"` // the record's body, decoded by its schema
}

// jsonText is JSON text that is written as it is.
type jsonText []byte

// MarshalJSON implements json.Marshaler.
func (t jsonText) MarshalJSON() ([]byte, error) { return t, nil }

func recordLineOf(entity string, r *nodev1.TimelineRecord) recordLine {
	l := recordLine{Entity: entity, Type: r.GetType(), ID: r.GetId(), Time: millrace.Time(r.GetTimeMs()).String(), Version: r.GetVersion(), Object: r.GetObject(), Deleted: r.GetDeleted(), Record: r.GetJson()}
	if r.GetSchema() != 0 {
		l.Schema = millrace.Fingerprint(r.GetSchema()).String()
	}
	return l
}
