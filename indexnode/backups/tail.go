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
)

// A tail is a piece of a partition's log outside of it: the records between a
// backup and a cut. It is compressed with zstd; inside:
//
//	"millrace tail 1\n"
//	for each record: 01, its stream (a byte), its offset (uvarint), its time
//	    (varint), then key, value, source and crc, each behind its length
//	00 and the count of records (uvarint)
//
// Records of a stream ascend. See [kafka.Record] for the fields.
const tailMagic = "millrace tail 1\n"

// maxTailField bounds a field of a record before it is read: a batch of the log
// is not larger.
const maxTailField = 64 << 20

// tailWriter writes a tail to a file, not compressed yet.
type tailWriter struct {
	f     *os.File
	w     *bufio.Writer
	count uint64
	buf   []byte
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

func (t *tailWriter) add(s kafka.Stream, r *kafka.Record) error {
	b := append(t.buf[:0], 1, byte(s))
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

// finish compresses what was written into another file, and removes its own.
func (t *tailWriter) finish(path string) (err error) {
	defer func() { err = errors.Join(err, t.f.Close(), os.Remove(t.f.Name())) }()
	_, err = t.w.Write(binary.AppendUvarint([]byte{0}, t.count))
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

// readTail gives the records of a tail to each, whose bytes are its own.
func readTail(path string, each func(kafka.Stream, kafka.Record) error) error {
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
	if err := t.all(each); err != nil {
		return fmt.Errorf("backups: tail %s: %w", path, err)
	}
	return nil
}

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64<<10) }

var errTail = errors.New("it is not a tail of the log")

type tailReader struct{ r *bufio.Reader }

func (t *tailReader) all(each func(kafka.Stream, kafka.Record) error) error {
	magic := make([]byte, len(tailMagic))
	if _, err := io.ReadFull(t.r, magic); err != nil || string(magic) != tailMagic {
		return errors.Join(errTail, err)
	}
	for count := uint64(0); ; count++ {
		kind, err := t.r.ReadByte()
		if err != nil {
			return errors.Join(errTail, err)
		}
		if kind == 0 {
			told, err := binary.ReadUvarint(t.r)
			if err != nil || told != count {
				return errors.Join(fmt.Errorf("%w: it has %d records and says %d", errTail, count, told), err)
			}
			return nil
		}
		s, rec, err := t.record()
		if err != nil {
			return err
		}
		if err := each(s, rec); err != nil {
			return err
		}
	}
}

func (t *tailReader) record() (s kafka.Stream, r kafka.Record, err error) {
	stream, err := t.r.ReadByte()
	if err != nil || stream > byte(kafka.Features) {
		return s, r, errors.Join(errTail, err)
	}
	offset, err := binary.ReadUvarint(t.r)
	if err != nil {
		return s, r, errors.Join(errTail, err)
	}
	at, err := binary.ReadVarint(t.r)
	if err != nil {
		return s, r, errors.Join(errTail, err)
	}
	r.Offset, r.Time = millrace.Offset(offset), millrace.Time(at)
	for _, field := range []*[]byte{&r.Key, &r.Value, &r.Source, &r.CRC} {
		if *field, err = t.field(); err != nil {
			return s, r, err
		}
	}
	return kafka.Stream(stream), r, nil
}

func (t *tailReader) field() ([]byte, error) {
	n, err := binary.ReadUvarint(t.r)
	if err != nil || n > maxTailField {
		return nil, errors.Join(errTail, err)
	}
	if n == 0 {
		return nil, nil
	}
	var b bytes.Buffer // grows with what is there, not with what is said
	if _, err := io.CopyN(&b, t.r, int64(n)); err != nil {
		return nil, errors.Join(errTail, err)
	}
	return b.Bytes(), nil
}
