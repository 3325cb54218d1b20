package schemas

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

// A record's time is held against when it arrived, to the millisecond.
func TestAccept(t *testing.T) {
	const arrived = millrace.Time(1_700_000_000_000)
	day := millrace.Time(DefaultFuture.Milliseconds())
	for _, c := range []struct {
		time, arrived millrace.Time
		future        time.Duration
		ok            bool
	}{
		{arrived, arrived, DefaultFuture, true},
		{0, arrived, DefaultFuture, true},
		{arrived + day, arrived, DefaultFuture, true},
		{arrived + day + 1, arrived, DefaultFuture, false},
		{arrived + day + 1, arrived, 48 * time.Hour, true},
		{1, 0, 0, false},
		{millrace.MaxTime - 1, arrived, DefaultFuture, false},
		{millrace.MaxTime - 1, -1, DefaultFuture, true},
		{0, 1<<63 - 1, DefaultFuture, true},
	} {
		body, err := Note().EncodeJSON(fmt.Appendf(nil, `{"id":"n","author":"member:1","kind":"post","at":%d}`, c.time))
		if err != nil {
			t.Fatal(err)
		}
		env, err := Note().Accept(body, c.arrived, c.future)
		var e *Error
		if c.ok && (err != nil || env.Record.Time != c.time) || !c.ok && (!errors.As(err, &e) || e.Reason != TimeInTheFuture || e.Field != "at") {
			t.Errorf("%d, arrived %d, future %s: %v", c.time, c.arrived, c.future, err)
		}
	}
	if _, err := Note().Accept([]byte{1}, -1, 0); err == nil {
		t.Error("a broken body is accepted")
	}
}
