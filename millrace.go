package millrace

import (
	"fmt"
	"time"
)

// Entity is anything that can be followed, such as "member:42".
type Entity string

// ContentType is what a record is: "post", "like", "comment".
type ContentType string

// RecordID identifies a record within a timeline. A later version of a record
// has the same id.
type RecordID string

// Object is what a record is about, and the key by which feeds deduplicate records. A record
// without one is about itself: its Object is its RecordID.
type Object string

// NodeID names an index node.
type NodeID string

// Partition is one of the slices of the entity space, 0 to partition.Count-1.
type Partition uint16

// Offset is a position in a partition of a Kafka topic: that of the next record to read.
type Offset int64

// Fingerprint is the CRC-64-AVRO fingerprint of a schema's canonical form
// (Avro specification, "Schema Fingerprints").
type Fingerprint uint64

// String returns the fingerprint as it appears in logs and files: 16 hexadecimal digits.
func (f Fingerprint) String() string { return fmt.Sprintf("%016x", uint64(f)) }

// Timeline names the records of one entity and content type.
type Timeline struct {
	Entity Entity
	Type   ContentType
}

// String returns the timeline as ENTITY/TYPE, such as "member:42/post".
func (t Timeline) String() string { return string(t.Entity) + "/" + string(t.Type) }

// Time is an instant in milliseconds since the Unix epoch, UTC: Avro's
// timestamp-millis.
type Time int64

// The bounds of a record's time, which is at least MinTime and below MaxTime: the epoch, and
// the first instant of the year 10000, from which on RFC 3339 cannot write a time.
const (
	MinTime Time = 0
	MaxTime Time = 253402300800000
)

// TimeOf returns t truncated to milliseconds.
func TimeOf(t time.Time) Time { return Time(t.UnixMilli()) }

// Std returns t as a time.Time in UTC.
func (t Time) Std() time.Time { return time.UnixMilli(int64(t)).UTC() }

// String returns the time as RFC 3339 with milliseconds, in UTC.
func (t Time) String() string { return t.Std().Format("2006-01-02T15:04:05.000Z07:00") }

// Record is a content record as the log and the store see it: the fields by which it is
// ordered, replaced and deleted, and a body that only its schema explains.
type Record struct {
	ID      RecordID
	Time    Time
	Version int64 // the newest version of an ID wins
	Object  Object
	Deleted bool        // a tombstone: it hides every version up to its own
	Schema  Fingerprint // of the writer's schema
	Body    []byte      // Avro binary, without framing
}

// Limits that hold everywhere a record passes, so that no later role refuses what an earlier
// one has accepted.
const (
	MaxEntityBytes = 512
	MaxTypeBytes   = 64
	MaxIDBytes     = 512
	MaxObjectBytes = 512
	MaxBodyBytes   = 1 << 20
	MaxAbout       = 256 // how many timelines, besides its own, a record may go to
)
