package team

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
)

// This is the protocol of the hand-written server over plain TCP, and of Lucene. A frame is a
// length in four bytes, and then a content of that many bytes. In the content, kinds and
// models have one byte, other numbers eight bytes, and floats of vectors four. Texts begin
// with a length of two bytes, lists with one of four. Everything is big-endian, as Java reads
// it.

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func appendDouble(b []byte, x float64) []byte {
	return binary.BigEndian.AppendUint64(b, math.Float64bits(x))
}

func appendFloat(b []byte, x float32) []byte {
	return binary.BigEndian.AppendUint32(b, math.Float32bits(x))
}

func appendTexts(b []byte, list []string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	for _, s := range list {
		b = appendText(b, s)
	}
	return b
}

func (q *question) append(b []byte) []byte {
	b = append(b, byte(q.model))
	b = appendText(b, q.country)
	b = appendDouble(b, q.freshness)
	b = appendTexts(b, q.reads)
	return appendTexts(b, q.follows)
}

func appendItems(b []byte, items []item) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(items)))
	for i := range items {
		it := &items[i]
		b = appendText(appendText(appendText(b, it.id), it.author), it.object)
		b = append(b, it.kind)
		b = binary.BigEndian.AppendUint64(b, uint64(it.at))
		b = appendDouble(b, it.score)
		b = appendTexts(b, it.also)
	}
	return b
}

var errFrame = errors.New("a frame ends early")

// frame is what is left to read of a frame. After a read beyond the end, err is set, and
// further reads return zeros and "".
type frame struct {
	b   []byte
	err error
}

func (f *frame) take(n int) []byte {
	if n > len(f.b) {
		f.b, f.err = nil, errFrame
		return make([]byte, min(n, 8))
	}
	b := f.b[:n]
	f.b = f.b[n:]
	return b
}

func (f *frame) text() string {
	n := int(binary.BigEndian.Uint16(f.take(2)))
	if n > len(f.b) {
		f.err = errFrame
		return ""
	}
	return string(f.take(n))
}

func (f *frame) double() float64 { return math.Float64frombits(binary.BigEndian.Uint64(f.take(8))) }

func (f *frame) texts() (list []string) {
	for range binary.BigEndian.Uint32(f.take(4)) {
		if f.err != nil {
			return nil
		}
		list = append(list, f.text())
	}
	return list
}

func (f *frame) question() question {
	return question{model: int(f.take(1)[0]) % len(models), country: f.text(), freshness: f.double(), reads: f.texts(), follows: f.texts()}
}

func (f *frame) items() (items []item) {
	for range binary.BigEndian.Uint32(f.take(4)) {
		if f.err != nil {
			return nil
		}
		items = append(items, item{
			id: f.text(), author: f.text(), object: f.text(), kind: f.take(1)[0],
			at: int64(binary.BigEndian.Uint64(f.take(8))), score: f.double(), also: f.texts(),
		})
	}
	return items
}

// maxFrame is the length of the longest frame that is read, more than any question or answer
// has.
const maxFrame = 4 << 20

// readFrame reads the content of a frame into buf, or into a larger buffer if it needs one,
// and returns it.
func readFrame(in *bufio.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > maxFrame {
		return nil, errFrame
	}
	if n > cap(buf) {
		buf = make([]byte, n)
	}
	_, err := io.ReadFull(in, buf[:n])
	return buf[:n], err
}

// frameOf begins a frame in the memory of b: it returns four bytes for the length, to which
// the content is appended.
func frameOf(b []byte) []byte { return append(b[:0], 0, 0, 0, 0) }

// sendFrame fills in the length of a frame that [frameOf] began, and sends it.
func sendFrame(out io.Writer, b []byte) error {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	_, err := out.Write(b)
	return err
}
