package tweets

import (
	"errors"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

func TestTweets(t *testing.T) {
	n, shares, last := 0, 0, millrace.Time(0)
	for line, err := range All() {
		if errors.Is(err, ErrAbsent) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := schemas.Activity().EncodeJSON(line)
		if err != nil {
			t.Fatal(err)
		}
		e, err := schemas.Activity().Envelope(body)
		if err != nil {
			t.Fatal(err)
		}
		if n++; e.Record.Time < last {
			t.Fatalf("%s at %s comes after %s", e.Record.ID, e.Record.Time, last)
		}
		last = e.Record.Time
		if e.Type == "share" {
			shares++
		}
	}
	if n != 297462 || shares != 138554 {
		t.Errorf("%d tweets, %d of them shares; want 297462 and 138554", n, shares)
	}
}

func TestTweet(t *testing.T) {
	got, err := tweet("7\t60\t5\tGerman\tGermany\t\t0\t6\t106\t1\t2\t3\t41\t103\t22")
	want := `{"about":["member:6"],"actor":"member:5","country":"Germany","created_at":"1970-01-01T00:01:00Z","features":[106,1,2,3,41,103,22],"id":"post:7","impressions":103,"language":"German","verb":"post"}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	for _, bad := range []string{"", "7\t60", "7\tnoon\t5\tGerman\tGermany\t\t0\t6\t106\t1\t2\t3\t41\t103\t22"} {
		if _, err := tweet(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// An unset MILLRACE_SHARED skips, a wrong one fails.
func TestSharedDataAbsent(t *testing.T) {
	t.Setenv("MILLRACE_SHARED", t.TempDir())
	for _, err := range All() {
		if err == nil || errors.Is(err, ErrAbsent) {
			t.Errorf("MILLRACE_SHARED names an empty folder: %v", err)
		}
	}
	t.Setenv("MILLRACE_SHARED", "")
	t.Chdir(t.TempDir())
	for _, err := range All() {
		if !errors.Is(err, ErrAbsent) {
			t.Errorf("no shared data: %v", err)
		}
	}
}
