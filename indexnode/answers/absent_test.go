package answers

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

// A model that is not here is told once a minute, each of its own, as a warning; other
// failures are told each.
func TestAbsentModelsAreToldOnceAMinute(t *testing.T) {
	var out bytes.Buffer
	n := &Server{log: slog.New(slog.NewTextHandler(&out, nil))}
	now := time.Now()
	absent := func(name string) error {
		return fmt.Errorf("indexnode: %w", &millrace.Error{Reason: millrace.ReasonNotHere, Field: "model", Detail: "no model " + name + " here"})
	}
	for i := range 120 {
		at := now.Add(time.Duration(i) * time.Second)
		n.logFailure(absent("rate"), at)
		n.logFailure(absent("other"), at)
	}
	n.logFailure(errors.New("broken"), now)
	n.logFailure(errors.New("broken"), now)
	for what, want := range map[string]int{"level=WARN": 4, "no model rate here": 2, "no model other here": 2, "level=ERROR": 2} {
		if got := strings.Count(out.String(), what); got != want {
			t.Errorf("%q stands there %d times, want %d", what, got, want)
		}
	}
}
