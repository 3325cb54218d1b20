package export

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// The pages of a Parquet file have checksums, but the metadata at its end, which say where
// the pages are and what they mean, have none. So an export puts a checksum of all bytes of
// the file into the metadata, under sealKey. While that is computed, noSum stands in the
// place of the checksum. Another program that writes the rows into a new file may copy the
// metadata, but not the name of the writer, so CheckSeal does not check that file.
const (
	writer  = "millrace"
	sealKey = "millrace.sha256"
)

// noSum is as long as a checksum in hexadecimal digits, all of them 0.
var noSum = strings.Repeat("0", hex.EncodedLen(sha256.Size))

// sealing is a writer that passes bytes on to w and adds them to a checksum. Once last is
// set, it keeps the bytes in last instead.
type sealing struct {
	w    io.Writer
	sum  hash.Hash     // of what was passed on
	last *bytes.Buffer // the last part of the file, its footer; nil: it has not begun
}

func (s *sealing) Write(b []byte) (int, error) {
	if s.last != nil {
		return s.last.Write(b)
	}
	n, err := s.w.Write(b)
	s.sum.Write(b[:n])
	return n, err
}

// seal completes the checksum with the last part, puts it there, and writes that part to w.
func (s *sealing) seal() error {
	last := s.last.Bytes()
	at := sealAt(last)
	if at < 0 {
		return errors.New("parquet: the checksum has no place")
	}
	s.sum.Write(last)
	hex.Encode(last[at:], s.sum.Sum(nil))
	_, err := s.w.Write(last)
	return err
}

// sealAt returns the index of the checksum in the last part of a file; -1 if it has none.
func sealAt(last []byte) int {
	key := bytes.LastIndex(last, []byte(sealKey))
	if key < 0 {
		return -1
	}
	const between = 2 // bytes between the key and the value: the value's type, and its length
	if at := key + len(sealKey) + between; at+len(noSum) <= len(last) {
		return at
	}
	return -1
}

// CheckSeal refuses a file of an export in which any byte has changed. It accepts files of
// other programs, and those of releases that wrote no checksum.
func CheckSeal(f *parquet.File) error {
	if !strings.HasPrefix(f.Metadata().CreatedBy, writer+" ") {
		return nil
	}
	const trailer = 8 // bytes at the end of a Parquet file: the metadata's length, and the format's name
	end := make([]byte, trailer)
	if _, err := f.ReadAt(end, f.Size()-trailer); err != nil {
		return err
	}
	begins := f.Size() - trailer - int64(binary.LittleEndian.Uint32(end))
	last := make([]byte, f.Size()-begins)
	if _, err := f.ReadAt(last, begins); err != nil {
		return err
	}
	at := sealAt(last)
	if at < 0 {
		return errors.New("its checksum is not there")
	}
	has := string(last[at : at+len(noSum)])
	copy(last[at:], noSum)
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, begins)); err != nil {
		return err
	}
	sum.Write(last)
	if is := hex.EncodeToString(sum.Sum(nil)); is != has {
		return fmt.Errorf("its checksum is %s, and it says %.64q", is, has)
	}
	return nil
}
