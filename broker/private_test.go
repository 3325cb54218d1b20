package broker

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rpcerr"
)

// What a definition forbids holds although the definition has a fault: else
// who can give it one opens what is private.
func TestAPrivateFeedWithAFaultStaysClosed(t *testing.T) {
	defs := newDefinitions()
	defs.serve("staff", 1, "name: staff\nfilter: record.aud in viewer.groups\nmodel: recency\nprivate: true\n")
	book := newFeedBook(BuiltIn(), defs, func(context.Context, Feed) (bool, error) {
		return true, errors.New("the schemas disagree")
	}, slog.New(slog.DiscardHandler))
	book.start()
	defer book.close()
	b := &Broker{feeds: book}
	var e *millrace.Error
	if _, err := b.feedOf("recent"); !errors.As(err, &e) || e.Reason != millrace.ReasonForbidden {
		t.Errorf("the built-in feed, beside a private one with a fault: %v", err)
	}
	if _, err := b.feedOf("staff"); !errors.As(err, &e) || e.Reason != millrace.ReasonUnavailable {
		t.Errorf("the private feed with a fault: %v", err)
	}
}

// A refusal that quotes what was sent is short, whatever was sent.
func TestRefusalsAreShort(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	p := rpcerr.ProblemOf(&millrace.Error{Reason: millrace.ReasonInvalid, Field: "viewer.attributes." + long, Detail: long, WayOut: long})
	if n := len(p.Field) + len(p.Detail) + len(p.WayOut); n > 4<<10 {
		t.Errorf("%d bytes", n)
	}
}
