package backups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
)

// manifest returns the manifest of a checkpoint, without the Refs (sizes and hashes) of its
// files, which are known once the files are uploaded.
func manifest(c *store.Checkpoint, node millrace.NodeID, schemas backup.Ref, retention map[millrace.ContentType]store.Retention) *backup.Manifest {
	m := &backup.Manifest{
		Partition: c.Partition, Node: node, Time: millrace.Time(time.Now().UnixMilli()),
		Applied: backup.Offsets(c.Applied),
		Log:     replica.LogOf(c.Origin), Origin: c.Origin, Digest: backup.Digest(c.Digest), Clock: c.Clock,
		Types: c.Types, Schemas: schemas, Retention: map[millrace.ContentType]backup.Retention{},
	}
	for t, r := range retention {
		m.Retention[t] = backup.Retention{MaxAge: r.MaxAge, MaxCount: r.MaxCount}
	}
	for _, f := range c.Files {
		m.Files = append(m.Files, backup.File{Name: f.Name, Bottom: f.Bottom})
	}
	return m
}

// sameState reports whether two backups of a partition are of one state of one log, so that
// nothing came between them.
func sameState(a, b *backup.Manifest) bool {
	return a.Applied == b.Applied && a.Digest == b.Digest && bytes.Equal(a.Origin, b.Origin) && a.Schemas == b.Schemas
}

// checkpoint is the reverse of manifest.
func checkpoint(m *backup.Manifest, schemas map[millrace.Fingerprint][]byte) store.Checkpoint {
	c := store.Checkpoint{
		Partition: m.Partition, Applied: store.Offsets(m.Applied),
		Origin: m.Origin, Digest: store.Digest(m.Digest), Clock: m.Clock,
		Types: m.Types, Schemas: schemas,
	}
	for _, f := range m.Files {
		c.Files = append(c.Files, store.File{Name: f.Name, Size: f.Size, Bottom: f.Bottom})
	}
	return c
}

// putSchemas uploads the rows of a registry of schemas, as a JSON object of rows by
// fingerprint.
func putSchemas(ctx context.Context, b *backup.Bucket, rows map[millrace.Fingerprint][]byte) (backup.Ref, error) {
	text := make(map[string][]byte, len(rows))
	for fp, row := range rows {
		text[fp.String()] = row
	}
	data, err := json.Marshal(text)
	if err != nil {
		return backup.Ref{}, fmt.Errorf("backups: schemas: %w", err)
	}
	ref, _, err := b.Put(ctx, data, nil)
	return ref, err
}

// maxSchemasBytes bounds what getSchemas reads.
const maxSchemasBytes = 64 << 20

// getSchemas is the reverse of putSchemas.
func getSchemas(ctx context.Context, b *backup.Bucket, ref backup.Ref) (map[millrace.Fingerprint][]byte, error) {
	data, err := b.Get(ctx, ref, maxSchemasBytes)
	if err != nil {
		return nil, err
	}
	var text map[string][]byte
	if err := json.Unmarshal(data, &text); err != nil {
		return nil, fmt.Errorf("backups: schemas: %w", err)
	}
	rows := make(map[millrace.Fingerprint][]byte, len(text))
	var errs []error
	for name, row := range text {
		fp, err := strconv.ParseUint(name, 16, 64)
		errs = append(errs, err)
		rows[millrace.Fingerprint(fp)] = row
	}
	return rows, errors.Join(errs...)
}
