package schemas

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/millrace/millrace/internal/column"
)

// FuzzParse: a schema is refused or works: it parses again, reads itself, and
// takes any bytes as a body without harm.
func FuzzParse(f *testing.F) {
	for _, s := range []*Schema{Activity(), Note(), Features()} {
		f.Add([]byte(s.JSON()), []byte("\x02i\x02e\x02t\x02"))
	}
	f.Add([]byte(withFields(`{"name":"f","type":["null",{"type":"map","values":{"type":"enum","name":"E","symbols":["A"],"default":"A"}}],"default":null}`)), []byte{})
	f.Fuzz(func(t *testing.T, avsc, body []byte) {
		s, err := Parse(avsc)
		if err != nil {
			return
		}
		again, err := Parse([]byte(s.JSON()))
		if err != nil || again.Fingerprint() != s.Fingerprint() {
			t.Fatalf("%s parses differently again: %v", avsc, err)
		}
		if err := CheckEvolution(s, again); err != nil {
			t.Fatalf("%s does not read itself: %v", avsc, err)
		}
		checkBody(t, s, body)
	})
}

// FuzzBody: the readers of a body agree whether it is one, and one is
// encoded again as it was, but for the blocks of its lists.
func FuzzBody(f *testing.F) {
	body, err := Activity().EncodeJSON([]byte(activityLine))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add(body[:len(body)/2])
	f.Fuzz(func(t *testing.T, body []byte) { checkBody(t, Activity(), body) })
}

func checkBody(t *testing.T, s *Schema, body []byte) {
	t.Helper()
	d, err := NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(s.Layout(), 1, 0).Append()
	appendErr := d.Append(a, body)
	_, envelopeErr := s.Envelope(body)
	value, valueErr := s.JSONValue(body)
	if (appendErr == nil) != (valueErr == nil) || envelopeErr == nil && appendErr != nil {
		t.Fatalf("readers disagree on %x: envelope %v, columns %v, JSON %v", body, envelopeErr, appendErr, valueErr)
	}
	checkStruct(t, s, body)
	if envelopeErr != nil {
		return
	}
	again, err := s.EncodeJSON(mustJSON(value))
	if err != nil {
		return // JSON does not tell all unions' branches apart
	}
	if back, err := s.JSONValue(again); s == Activity() && (err != nil || !reflect.DeepEqual(back, value)) {
		t.Fatalf("%x is %v and, encoded again, %v, %v", body, value, back, err)
	}
}

// FuzzUnframe: what single-object framing takes apart, it puts together.
func FuzzUnframe(f *testing.F) {
	f.Add(Frame(1, []byte("body")))
	f.Add([]byte("\x00\x00\x00\x00\x07body"))
	f.Fuzz(func(t *testing.T, value []byte) {
		x, err := Unframe(value)
		if err == nil && !x.Confluent && !bytes.Equal(Frame(x.Fingerprint, x.Body), value) {
			t.Fatalf("%x comes apart as %+v", value, x)
		}
	})
}
