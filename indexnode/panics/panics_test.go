package panics_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace/indexnode/panics"
)

// breaks panics with a value, nil for none, and returns what Contain makes of that.
func breaks(value any, before error) (err error) {
	err = before
	defer panics.Contain(&err)
	if value != nil {
		panic(value)
	}
	return err
}

// A panic becomes an error that is known again, and is counted and logged once, with its
// stack; any other error is left as it is.
func TestAPanicIsAnError(t *testing.T) {
	var log bytes.Buffer
	teller := panics.NewTeller(slog.New(slog.NewTextHandler(&log, nil)))
	plain := errors.New("plain")
	for _, c := range []struct {
		err  error
		is   bool
		text string
	}{
		{breaks(nil, nil), false, ""},
		{breaks(nil, plain), false, "plain"},
		{breaks("a broken invariant", plain), true, "query panicked: a broken invariant"},
		{fmt.Errorf("read: %w", breaks(7, nil)), true, "read: query panicked: 7"},
	} {
		if got := panics.In(c.err); got != c.is || c.err != nil && c.err.Error() != c.text || c.err == nil && c.text != "" {
			t.Errorf("%v is of a panic: %t", c.err, got)
		}
		log.Reset()
		before := count(t, teller)
		teller.Tell(c.err)
		told := count(t, teller) - before
		if want := map[bool]float64{true: 1}[c.is]; told != want || strings.Count(log.String(), "\n") != int(want) || c.is && !strings.Contains(log.String(), "panics_test.breaks") {
			t.Errorf("%v is counted %v times, and logged as %q", c.err, told, &log)
		}
	}
}

func count(t *testing.T, teller *panics.Teller) float64 {
	t.Helper()
	var m dto.Metric
	if err := teller.Count.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.Counter.GetValue()
}
