package bench

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
)

// stream is the records of a team as they come in: in the order of their times,
// each of any entity, with a text and 24 floats. Each is a function of its number.
type stream struct {
	records, entities int
	seed              uint64
}

// streamBegins is the time of the first record, and streamStep between two.
const (
	streamBegins = 1_750_000_000_000
	streamStep   = 100 // ms
)

var (
	streamTypes = []string{"post", "share", "comment"}
	streamWords = strings.Fields(text + " what we saw of it this morning and why nobody else would have gone there at all with so little time left before winter")
)

// line appends the i-th record as JSON.
func (s *stream) line(dst []byte, i int) []byte {
	r := rand.New(rand.NewPCG(s.seed, uint64(i)))
	dst = fmt.Appendf(dst, `{"id":"r%d","actor":"member:%d","verb":%q,"created_at":%d,"object":"article:%d","language":%q,"country":%q,"visibility":%q,"text":"`,
		i, r.IntN(s.entities), streamTypes[r.IntN(len(streamTypes))], streamBegins+int64(i)*streamStep, r.IntN(s.records),
		languages[r.IntN(len(languages))], countries[r.IntN(len(countries))], visibilities[r.IntN(len(visibilities))])
	for n := 8 + r.IntN(24); n > 0; n-- {
		dst = append(append(dst, streamWords[r.IntN(len(streamWords))]...), ' ')
	}
	dst = fmt.Appendf(dst, `","likes":%d,"comments":%d,"shares":%d,"impressions":%d,"features":[`, r.IntN(100), r.IntN(20), r.IntN(10), r.IntN(50_000))
	for n := range 24 {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendFloat(dst, r.NormFloat64(), 'g', 6, 32)
	}
	return append(dst, "]}\n"...)
}

// write makes a file of all of them.
func (s *stream) write(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	var line []byte
	for i := range s.records {
		line = s.line(line[:0], i)
		w.Write(line) // a failure stays with the writer
	}
	return errors.Join(w.Flush(), f.Close())
}
