// Package served says by what a candidate is remembered once a page has shown
// it: the hashes of NodeService's QueryRequest.exclude, which brokers carry in
// page tokens and index nodes leave out. broker/DESIGN.md has the reasons.
//
// A feed that ranks distinct objects remembers objects, any other remembers
// candidates. An index node drops what is excluded after the cap per entity
// and before the top N, so that pages together are what one long answer is.
package served

import (
	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
)

// Object is the hash of an object, for feeds of distinct objects.
func Object(o millrace.Object) uint64 { return xxhash.Sum64String(string(o)) }

// Candidate is the hash of a record in a timeline, for all other feeds.
func Candidate(t millrace.Timeline, id millrace.RecordID) uint64 {
	var d xxhash.Digest
	d.Reset()
	for _, s := range [...]string{string(t.Entity), string(t.Type), string(id)} {
		n := uint32(len(s))
		_, _ = d.Write([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
		_, _ = d.WriteString(s)
	}
	return d.Sum64()
}
