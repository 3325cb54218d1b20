package millrace

import (
	"testing"
	"time"
)

func TestTime(t *testing.T) {
	for ms, want := range map[Time]string{
		MinTime:       "1970-01-01T00:00:00.000Z",
		1:             "1970-01-01T00:00:00.001Z",
		1290664733756: "2010-11-25T05:58:53.756Z",
		MaxTime - 1:   "9999-12-31T23:59:59.999Z",
	} {
		if got := ms.String(); got != want {
			t.Errorf("%d prints as %s, want %s", int64(ms), got, want)
		}
		if TimeOf(ms.Std()) != ms {
			t.Errorf("%s does not come back", want)
		}
	}
	if got := TimeOf(time.Unix(1, 1999999).UTC()); got != 1001 {
		t.Errorf("milliseconds are rounded: %d", got)
	}
	if _, err := time.Parse(time.RFC3339, MaxTime.String()); err == nil {
		t.Error("MaxTime can be written in RFC 3339; it is meant to be the first that cannot")
	}
}

func TestNamesPrint(t *testing.T) {
	if s := (Timeline{"member:42", "post"}).String(); s != "member:42/post" {
		t.Errorf("timeline %q", s)
	}
	if s := Fingerprint(0xbeef).String(); s != "000000000000beef" {
		t.Errorf("fingerprint %q", s)
	}
}

func TestErrorSaysFieldAndWayOut(t *testing.T) {
	for want, e := range map[string]Error{
		"detail":                   {Detail: "detail"},
		"limit: detail":            {Field: "limit", Detail: "detail"},
		"limit: detail; the other": {Reason: ReasonInvalid, Field: "limit", Detail: "detail", WayOut: "the other"},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
