package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace/internal/backup/objects"
	"github.com/millrace/millrace/internal/partition"
)

// format is the number that all JSON objects of a bucket have in their field format. A newer
// Millrace may write a higher one, which this one refuses to read.
const format = 1

const partitions = partition.Count

// maxObjectBytes bounds the size of a JSON object. A larger one is not read.
const maxObjectBytes = 16 << 20

// encode returns a JSON object as it is in a bucket: a line of JSON, and a line with the
// SHA-256 of the first.
func encode(v any) ([]byte, error) {
	line, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	line = append(line, '\n')
	line = fmt.Appendf(line, "%x\n", sha256.Sum256(line))
	if len(line) > maxObjectBytes {
		return nil, fmt.Errorf("the object has %d bytes; at most %d are read", len(line), maxObjectBytes)
	}
	return line, nil
}

// decode reads data, which encode wrote, into the value that into points to. The error is a
// [Damage] for anything else. name is the object's.
func decode(name string, data []byte, into any) error {
	torn := func(detail string) error { return &Damage{Object: name, Kind: Torn, Detail: detail} }
	at := bytes.IndexByte(data, '\n') + 1
	if at == 0 || string(data[at:]) != fmt.Sprintf("%x\n", sha256.Sum256(data[:at])) {
		return torn("its second line is not the SHA-256 of its first")
	}
	var f struct {
		Format int `json:"format"`
	}
	switch err := json.Unmarshal(data[:at], &f); {
	case err != nil:
		return torn(err.Error())
	case f.Format > format:
		return newer(name, f.Format)
	case f.Format != format:
		return torn(fmt.Sprintf("it has the format %d, which is none", f.Format))
	}
	strict := json.NewDecoder(bytes.NewReader(data[:at]))
	strict.DisallowUnknownFields()
	if err := strict.Decode(into); err != nil {
		return torn(err.Error())
	}
	if _, err := strict.Token(); err != io.EOF {
		return torn("something follows its JSON")
	}
	return nil
}

// readObject reads a JSON object into the value that into points to, and returns the hash of
// its bytes. objects.IsMissing tells the error for an object that is not there.
func (b *Bucket) readObject(ctx context.Context, name string, into any) (h Hash, err error) {
	data, err := b.readBytes(ctx, name)
	if err != nil {
		return h, err
	}
	return sha256.Sum256(data), decode(name, data, into)
}

// readBytes reads the bytes of a JSON object. It tries again if the read breaks off.
func (b *Bucket) readBytes(ctx context.Context, name string) ([]byte, error) {
	for broken := 0; ; broken++ {
		r, o, err := b.objects.Open(ctx, name, 0)
		switch {
		case errors.Is(err, objects.ErrOdd):
			return nil, &Damage{Object: name, Kind: Link, Detail: err.Error()}
		case err != nil:
			return nil, err
		case o.Size > maxObjectBytes:
			return nil, errors.Join(&Damage{Object: name, Kind: WrongSize, Detail: fmt.Sprintf("it has %d bytes; at most %d are read", o.Size, maxObjectBytes)}, r.Close())
		}
		data, err := io.ReadAll(io.LimitReader(r, maxObjectBytes+1))
		_ = r.Close() // either all was read, or err says why not
		switch {
		case err != nil && ctx.Err() == nil && broken < objects.Tries && !objects.IsFinal(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("backup: read %s: %w", name, err)
		case int64(len(data)) != o.Size:
			return nil, &Damage{Object: name, Kind: WrongSize, Detail: fmt.Sprintf("it has %d bytes and says %d", len(data), o.Size)}
		}
		return data, nil
	}
}

// createObject writes a JSON object that is not there yet, and reads it back. If one with
// the same bytes is there, that is a success: an earlier try of the same write arrived,
// and its answer was lost. The store may say that there is one and then not find it, since
// another process is just writing or removing it. Then createObject tries again.
func (b *Bucket) createObject(ctx context.Context, name string, v any) error {
	data, err := encode(v)
	if err != nil {
		return fmt.Errorf("backup: write %s: %w", name, err)
	}
	for tries := 1; ; tries++ {
		wrote := b.objects.Write(ctx, name, bytes.NewReader(data), true)
		if wrote != nil && !objects.IsThere(wrote) {
			return wrote
		}
		err := b.readBack(ctx, name, data, wrote)
		if wrote == nil || tries == createTries || !objects.IsMissing(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(createPause):
		}
	}
}

// How often createObject tries, and how long it waits between two tries.
const (
	createTries = 5
	createPause = 100 * time.Millisecond
)

// replaceObject writes a JSON object, also over one that is there, and reads it back.
func (b *Bucket) replaceObject(ctx context.Context, name string, v any) error {
	data, err := encode(v)
	if err != nil {
		return fmt.Errorf("backup: write %s: %w", name, err)
	}
	if err := b.objects.Write(ctx, name, bytes.NewReader(data), false); err != nil {
		return err
	}
	return b.readBack(ctx, name, data, nil)
}

// readBack returns nil if the object has the bytes data. wrote is the error of the write:
// if it is not nil, the object is another's, and readBack returns wrote.
func (b *Bucket) readBack(ctx context.Context, name string, data []byte, wrote error) error {
	got, err := b.readBytes(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("backup: read back what was written: %w", err)
	case bytes.Equal(got, data):
		return nil
	case wrote != nil:
		return wrote
	}
	return &Damage{Object: name, Kind: Torn, Detail: "it was just written, and is of other bytes; the store loses or alters data"}
}
