package command

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

// A time from when on is one that has come, but for what clocks may differ by, and a span
// goes back from now; up to when may be to come. What is refused is named by its flag.
func TestTimesOfFlags(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]struct{ since, until string }{
		"90m":                      {"2026-03-01T10:30:00Z", "2026-03-01T10:30:00Z"},
		"0s":                       {"2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"},
		"-1s":                      {"is no time ago", "is no time ago"},
		"2026-03-01T12:00:30Z":     {"2026-03-01T12:00:30Z", "2026-03-01T12:00:30Z"},
		"2026-03-01T12:02:00Z":     {"has not come yet", "2026-03-01T12:02:00Z"},
		"0001-01-01T00:00:00Z":     {"0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"},
		"1969-12-31T23:59:59.999Z": {"1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"},
		"yesterday":                {"neither a duration nor a time", "neither a duration nor a time"},
	} {
		for _, c := range []struct {
			read func(string, string, time.Time) (millrace.Time, error)
			want string
		}{{Since, want.since}, {Until, want.until}} {
			got, err := c.read("flag", text, now)
			e, refused := errors.AsType[*millrace.Error](err)
			switch at, bad := time.Parse(time.RFC3339, c.want); {
			case bad == nil && (err != nil || got != millrace.TimeOf(at)):
				t.Errorf("%s is %s, %v, want %s", text, got, err, c.want)
			case bad != nil && (!refused || e.Field != "flag" || !strings.Contains(e.Detail, c.want)):
				t.Errorf("%s is %s, %v, want %s", text, got, err, c.want)
			}
		}
	}
}

// Of answers of a time it is not said that there are none.
func TestUnknownAmongAnswersOfATime(t *testing.T) {
	for want, c := range map[string]struct {
		then string
		has  map[string]bool
	}{
		"has no answer of feed home; it has answers of no feed":                                                          {},
		"has no answer of feed home since noon; it has answers of no feed since noon; there may be some of another time": {then: " since noon"},
		"has no answer of feed home since noon; known are town since noon; there may be some of another time":            {" since noon", map[string]bool{"town": true}},
	} {
		if err := UnknownAmong("feed", "home", "exposures has no answer", c.then, c.has); !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
