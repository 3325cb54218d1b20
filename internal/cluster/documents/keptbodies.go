package documents

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

// BodyFile returns the file in a data directory where the bytes of an artefact's version are
// kept; sum is their SHA-256 in hex.
func BodyFile(dir, kind, sum string) string { return filepath.Join(dir, "bodies-"+kind, sum) }

// ReadBody reads the bytes of a version. It returns an error if their number or checksum is
// not e's.
func ReadBody(file string, e ledger.Edition) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() != int64(e.Bytes) {
		return nil, fmt.Errorf("%s has %d bytes, not %d", file, info.Size(), e.Bytes)
	}
	body, err := os.ReadFile(file)
	if err == nil && Checksum(body) != e.Sum {
		err = fmt.Errorf("%s has another checksum", file)
	}
	return body, err
}

// keptBodies returns the checksums of the serving versions whose bytes are on disk here. It
// looks only at those documents that are ledgers of artefacts, and that a snapshot does not
// have in the same version.
func keptBodies(c *cluster.Client, kind string, docs map[string]Document, s *keyspace.Snapshot) (sums []string) {
	for name, d := range docs {
		if s.Values[name].Version == d.Version {
			continue
		}
		l, err := ledger.Parse(d.Body)
		if err != nil {
			continue
		}
		if e, serves := l.Find(l.Serving); serves && OnDisk(BodyFile(c.Dir(), kind, e.Sum), e) {
			sums = append(sums, e.Sum)
		}
	}
	return sums
}

// OnDisk reports whether a file exists and has as many bytes as a version. It does not read
// the bytes.
func OnDisk(file string, e ledger.Edition) bool {
	info, err := os.Stat(file)
	return err == nil && info.Size() == int64(e.Bytes)
}
