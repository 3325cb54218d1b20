package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace/schemas"
)

// lines reads a file line by line.
type lines struct {
	file   *os.File
	zstd   *zstd.Decoder // nil if the file is not compressed
	buf    *bufio.Reader
	number int          // the number of the line read last, from 1; 0: none yet
	read   atomic.Int64 // how many bytes of the file are read; of a compressed file, compressed bytes
	size   int64        // the file's size in bytes; 0: not known
}

func openLines(name string) (*lines, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	l := &lines{file: file}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		l.size = info.Size()
	}
	var r io.Reader = countingReader{file, &l.read}
	if strings.HasSuffix(name, ".zst") {
		if l.zstd, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20)); err != nil {
			file.Close()
			return nil, fmt.Errorf("load: %s: %w", name, err)
		}
		r = l.zstd
	}
	l.buf = bufio.NewReaderSize(r, 256<<10)
	return l, nil
}

// is reports whether name names this file too. It is false for a pipe or a device, which
// cannot be overwritten.
func (l *lines) is(name string) bool {
	from, err := l.file.Stat()
	if err != nil || !from.Mode().IsRegular() {
		return false
	}
	to, err := os.Stat(name)
	return err == nil && os.SameFile(from, to)
}

func (l *lines) Close() error {
	if l.zstd != nil {
		l.zstd.Close()
	}
	return l.file.Close()
}

// next appends the next line to dst, without its newline. Of a line longer than
// maxLineBytes it appends the first maxLineBytes, and returns a *schemas.Error. After the
// last line the error is io.EOF.
func (l *lines) next(dst []byte) ([]byte, error) {
	from, tooLong, any := len(dst), false, false
	for {
		part, err := l.buf.ReadSlice('\n')
		any = any || len(part) > 0
		if room := from + maxLineBytes - len(dst); len(part) > room {
			part, tooLong = part[:room], true
		}
		dst = append(dst, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && (err != io.EOF || !any) {
			return dst[:from], err
		}
		break
	}
	l.number++
	if tooLong {
		return dst, &schemas.Error{Reason: schemas.OverLimit, Detail: fmt.Sprintf("longer than %d bytes", maxLineBytes)}
	}
	return bytes.TrimSuffix(dst, []byte{'\n'}), nil
}

// countingReader adds to n the number of bytes that are read through it.
type countingReader struct {
	r io.Reader
	n *atomic.Int64
}

func (c countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// aside is the file of rejected lines. It is created, or emptied, for the first of them.
type aside struct {
	name string
	file *os.File
	buf  *bufio.Writer
}

// write appends a line and a newline to the file.
func (a *aside) write(line []byte) error {
	if a.file == nil {
		file, err := os.OpenFile(a.name, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		// A file that existed before would keep its mode, and others might read it.
		if is, err := file.Stat(); err == nil && is.Mode().IsRegular() {
			if err := file.Chmod(0o600); err != nil {
				return errors.Join(fmt.Errorf("%w: rejected lines are the caller's alone: name a file of your own", err), file.Close())
			}
			if err := file.Truncate(0); err != nil {
				return errors.Join(err, file.Close())
			}
		}
		a.file, a.buf = file, bufio.NewWriter(file)
	}
	a.buf.Write(line) // the next write returns its error, too
	return a.buf.WriteByte('\n')
}

func (a *aside) Close() error {
	if a.file == nil {
		return nil
	}
	err := errors.Join(a.buf.Flush(), a.file.Close())
	if err != nil {
		err = fmt.Errorf("load: write aside: %w", err)
	}
	return err
}
