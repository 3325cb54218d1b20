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
// the pages are and what they mean, have none. So a file of an export has a checksum of all
// of its bytes among the metadata; in that sum the checksum itself counts as noSum. A program
// that writes the rows into another file, to sort them, say, may copy the checksum; but it
// names itself as the writer.
const (
	writer  = "millrace"
	sealKey = "millrace.sha256"
)

var noSum = strings.Repeat("0", hex.EncodedLen(sha256.Size))

// sealing is a writer that passes on what is written to w and adds it to a checksum. Once
// last is set, it keeps what is written there instead.
type sealing struct {
	w    io.Writer
	sum  hash.Hash     // of what was passed on
	last *bytes.Buffer // nil: the last part has not begun
}

func (s *sealing) Write(b []byte) (int, error) {
	if s.last != nil {
		return s.last.Write(b)
	}
	n, err := s.w.Write(b)
	s.sum.Write(b[:n])
	return n, err
}

// seal puts the checksum into the last part, and writes that.
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

// sealAt returns where the checksum is in the last part of a file; -1: nowhere.
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
