package schemalog

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Each record of the topic counts, or is refused and told with its place, and then changes
// nothing. What was decided is told with who decided it.
func TestRecordsOfTheTopic(t *testing.T) {
	known, err := registry.New(nil, nil)
	kafkatest.Must(t, err)
	var said strings.Builder
	l := &Log{cfg: Config{Registry: known, Log: slog.New(slog.NewTextHandler(&said, nil))}}
	l.begin()
	note, activity := schemas.Note(), schemas.Activity()
	fp, other := note.Fingerprint(), activity.Fingerprint()
	word := `{"by":"ann","at":"2026-03-01T12:00:00Z"}`
	for i, c := range []struct {
		key, value string
		refused    string // a part of why; empty: it counts
	}{
		{fp.String(), note.JSON(), ""},
		{fp.String(), note.JSON(), ""},
		{other.String(), note.JSON(), "its key is not its fingerprint, " + fp.String()},
		{fp.String(), "{", "error="},
		{"refused:" + fp.String(), word, "its schema came before it was given up"},
		{"refused:xyz", word, "is not a schema's fingerprint"},
		{"retired:xyz", word, "is not a schema's fingerprint"},
		{"retired:" + fp.String(), word, "error="}, // it is the last of its name
		{"retired:" + other.String(), word, "error="},
		{"refused:" + other.String(), word, ""},
		{"refused:" + other.String(), "by nobody", ""},
		{other.String(), activity.JSON(), "an operator gave its fingerprint up before it came"},
		{"refused:0123456789abcdef", "by nobody", ""},
	} {
		said.Reset()
		if err := l.take(&kgo.Record{Topic: "schemas", Offset: 77, Key: []byte(c.key), Value: []byte(c.value)}); err != nil {
			t.Errorf("record %d: %v", i, err)
		}
		got := said.String()
		if c.refused == "" && got != "" || c.refused != "" && (!strings.Contains(got, c.refused) || !strings.Contains(got, "topic=schemas offset=77")) {
			t.Errorf("record %d is refused by %q, want %q", i, got, c.refused)
		}
	}
	if err := l.take(&kgo.Record{Key: []byte(fp.String())}); err != nil || !l.Has(fp) || l.Has(other) || l.Refused(fp) || !l.Refused(other) {
		t.Errorf("the topic has %v, and refuses %v: %v", l.topic.has, l.topic.refused, err)
	}
	if all := l.AllRefused(); len(all) != 2 || all[0] > all[1] {
		t.Errorf("refused are %v", all)
	}
	if w := l.Word(other); w.By != "ann" || !w.At.Equal(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)) || l.Word(fp) != (Word{}) {
		t.Errorf("it was refused by %+v", w)
	}
	// What an operator may not decide is told as a fault of what was given.
	for what, c := range map[string]struct {
		err   error
		fault bool
	}{
		"to refuse one that is known": {l.MayRefuse(fp), true}, "to refuse another": {l.MayRefuse(other), false}, "to retire the last": {l.MayRetire(fp), true}, "to retire none": {l.MayRetire(other), true},
	} {
		if e, ok := errors.AsType[*millrace.Error](c.err); ok != c.fault || !ok && c.err != nil || ok && (e.Field != "fingerprint" || e.WayOut == "") {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	if err := l.admissible(activity); !errors.As(err, new(*registry.RefusedError)) || l.admissible(note) != nil {
		t.Errorf("one that is refused is admissible: %v", err)
	}
	if l.begin(); l.Has(fp) || l.Refused(other) || l.Word(other) != (Word{}) || len(known.Snapshot().All()) != 1 {
		t.Error("begun anew, it has what another topic had, or the registry has forgotten it")
	}
}
