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

// The pages of a Parquet file have checksums, and what says where they are and what they
// mean has none. So a file of an export has a checksum of all of its bytes, among the
// metadata at its end; the checksum itself counts as noSum. Who writes the rows anew,
// as to sort them, may take the metadata along, but says that the file is its own.
const (
	writer  = "millrace"
	sealKey = "millrace.sha256"
)

var noSum = strings.Repeat("0", hex.EncodedLen(sha256.Size))

// sealing passes on what is written, and keeps the last part of it.
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

// seal writes the last part, with the checksum.
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
	const between = 2 // the type of the value, and its length
	if at := key + len(sealKey) + between; at+len(noSum) <= len(last) {
		return at
	}
	return -1
}

// CheckSeal refuses a file of an export of which any byte is another one than was
// written. Of files that others wrote, and exports of before, it says nothing.
func CheckSeal(f *parquet.File) error {
	if !strings.HasPrefix(f.Metadata().CreatedBy, writer+" ") {
		return nil
	}
	const trailer = 8 // how long the metadata is, and the format's name
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
