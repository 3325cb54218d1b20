package cluster

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/cluster/keyspace"
)

func bodyFile(dir, kind, sum string) string { return filepath.Join(dir, "bodies-"+kind, sum) }

func readBody(file string, e edition) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() != int64(e.Bytes) {
		return nil, fmt.Errorf("%s has %d bytes, not %d", file, info.Size(), e.Bytes)
	}
	body, err := os.ReadFile(file)
	if err == nil && checksum(body) != e.Sum {
		err = fmt.Errorf("%s has another checksum", file)
	}
	return body, err
}

// keptBodies are the sums of the versions that serve by documents which a snapshot does
// not have just so, and whose bytes are on disk here.
func (c *Client) keptBodies(kind string, docs map[string]Document, s *keyspace.Snapshot) (sums []string) {
	for name, d := range docs {
		if s.Values[name].Version == d.Version {
			continue
		}
		l, err := parseLedger(d.Body)
		if err != nil {
			continue
		}
		if e, serves := l.find(l.Serving); serves && onDisk(bodyFile(c.dir, kind, e.Sum), e) {
			sums = append(sums, e.Sum)
		}
	}
	return sums
}

// onDisk reports whether a file may be the bytes of a version: it does not read them.
func onDisk(file string, e edition) bool {
	info, err := os.Stat(file)
	return err == nil && info.Size() == int64(e.Bytes)
}
