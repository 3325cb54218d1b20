package backups

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
)

// A tail is a copy of a piece of a partition's log, as a file: the records between a
// backup and a cut. It is compressed with zstd. Inside are:
//
//	"millrace tail 1\n"
//	for each schema: 02, its fingerprint (8 bytes, big-endian), the length of its
//	    row in the store (uvarint), the row
//	for each fingerprint that an operator has given up: 03, the fingerprint
//	for each record: 01, its stream (a byte), its offset (uvarint), its time
//	    (varint), then key, value, source and crc, each behind its length (uvarint)
//	00, and how many schemas, fingerprints and records come before it (uvarint)
//
// The offsets of a stream's records ascend. See [streams.Record] for the fields. The
// schemas are those of the whole cluster at the cut; the backup may lack some of them.
const tailMagic = "millrace tail 1\n"

// maxTailField bounds a field before it is read: a whole batch of the log is not larger.
const maxTailField = 64 << 20

// tailWriter writes a tail to a file, which finish compresses.
type tailWriter struct {
	f     *os.File
	w     *bufio.Writer
	count uint64 // schemas, fingerprints and records written
	buf   []byte // scratch for a record
}

func newTailWriter(path string) (*tailWriter, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	t := &tailWriter{f: f, w: bufio.NewWriterSize(f, 16<<10)}
	_, err = t.w.WriteString(tailMagic)
	return t, err
}

// The kinds of what a tail holds.
const (
	tailEnd = iota
	tailRecord
	tailSchema
	tailRefused
)

func (t *tailWriter) schema(fp millrace.Fingerprint, row []byte) error {
	b := binary.BigEndian.AppendUint64([]byte{tailSchema}, uint64(fp))
	b = append(binary.AppendUvarint(b, uint64(len(row))), row...)
	t.count++
	_, err := t.w.Write(b)
	return err
}

func (t *tailWriter) refused(fp millrace.Fingerprint) error {
	t.count++
	_, err := t.w.Write(binary.BigEndian.AppendUint64([]byte{tailRefused}, uint64(fp)))
	return err
}

func (t *tailWriter) add(s kafka.Stream, r *streams.Record) error {
	b := append(t.buf[:0], tailRecord, byte(s))
	b = binary.AppendUvarint(b, uint64(r.Offset))
	b = binary.AppendVarint(b, int64(r.Time))
	for _, field := range [][]byte{r.Key, r.Value, r.Source, r.CRC} {
		b = append(binary.AppendUvarint(b, uint64(len(field))), field...)
	}
	t.buf = b
	t.count++
	_, err := t.w.Write(b)
	return err
}

// finish compresses what was written into a new file at path, and removes its own file.
func (t *tailWriter) finish(path string) (err error) {
	defer func() { err = errors.Join(err, t.f.Close(), os.Remove(t.f.Name())) }()
	_, err = t.w.Write(binary.AppendUvarint([]byte{tailEnd}, t.count))
	if err = errors.Join(err, t.w.Flush()); err != nil {
		return err
	}
	if _, err := t.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return errors.Join(err, out.Close())
	}
	_, err = io.Copy(z, t.f)
	return errors.Join(err, z.Close(), out.Close())
}

// tailTaker takes what a tail holds. It may keep the bytes that it gets.
type tailTaker interface {
	schema(fp millrace.Fingerprint, row []byte) error
	refused(fp millrace.Fingerprint) error
	add(s kafka.Stream, r *streams.Record) error
}

// readTail gives what the tail at path holds to a taker, in order.
func readTail(path string, to tailTaker) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxTailField))
	if err != nil {
		return err
	}
	defer z.Close()
	t := tailReader{r: newReader(z)}
	if err := t.all(to); err != nil {
		return fmt.Errorf("backups: tail %s: %w", path, err)
	}
	return nil
}

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64<<10) }

var errTail = errors.New("it is not a tail of the log")

type tailReader struct{ r *bufio.Reader }

func (t *tailReader) all(to tailTaker) error {
	magic := make([]byte, len(tailMagic))
	if _, err := io.ReadFull(t.r, magic); err != nil || string(magic) != tailMagic {
		return errors.Join(errTail, err)
	}
	for count := uint64(0); ; count++ {
		kind, err := t.r.ReadByte()
		if err != nil {
			return errors.Join(errTail, err)
		}
		switch kind {
		case tailEnd:
			told, err := binary.ReadUvarint(t.r)
			if err != nil || told != count {
				return errors.Join(fmt.Errorf("%w: it has %d records and says %d", errTail, count, told), err)
			}
			return nil
		case tailRecord:
			err = t.record(to)
		case tailSchema:
			err = t.schema(to)
		case tailRefused:
			var fp millrace.Fingerprint
			if fp, err = t.fingerprint(); err == nil {
				err = to.refused(fp)
			}
		default:
			err = fmt.Errorf("%w: kind %d", errTail, kind)
		}
		if err != nil {
			return err
		}
	}
}

func (t *tailReader) fingerprint() (millrace.Fingerprint, error) {
	var b [8]byte
	if _, err := io.ReadFull(t.r, b[:]); err != nil {
		return 0, errors.Join(errTail, err)
	}
	return millrace.Fingerprint(binary.BigEndian.Uint64(b[:])), nil
}

func (t *tailReader) schema(to tailTaker) error {
	fp, err := t.fingerprint()
	if err != nil {
		return err
	}
	row, err := t.field()
	if err != nil {
		return err
	}
	return to.schema(fp, row)
}

func (t *tailReader) record(to tailTaker) error {
	stream, err := t.r.ReadByte()
	if err != nil || stream > byte(kafka.Features) {
		return errors.Join(errTail, err)
	}
	offset, err := binary.ReadUvarint(t.r)
	if err != nil {
		return errors.Join(errTail, err)
	}
	at, err := binary.ReadVarint(t.r)
	if err != nil {
		return errors.Join(errTail, err)
	}
	r := streams.Record{Offset: millrace.Offset(offset), Time: millrace.Time(at)}
	for _, field := range []*[]byte{&r.Key, &r.Value, &r.Source, &r.CRC} {
		if *field, err = t.field(); err != nil {
			return err
		}
	}
	return to.add(kafka.Stream(stream), &r)
}

func (t *tailReader) field() ([]byte, error) {
	n, err := binary.ReadUvarint(t.r)
	if err != nil || n > maxTailField {
		return nil, errors.Join(errTail, err)
	}
	if n == 0 {
		return nil, nil
	}
	var b bytes.Buffer // grows with the bytes that are there: the length may be wrong
	if _, err := io.CopyN(&b, t.r, int64(n)); err != nil {
		return nil, errors.Join(errTail, err)
	}
	return b.Bytes(), nil
}
