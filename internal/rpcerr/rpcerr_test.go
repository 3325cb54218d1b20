package rpcerr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
)

var reasons = []millrace.Reason{
	millrace.ReasonInvalid, millrace.ReasonUnknown, millrace.ReasonFilter, millrace.ReasonTooLarge, millrace.ReasonOverloaded, millrace.ReasonQuota,
	millrace.ReasonUnavailable, millrace.ReasonDeadline, millrace.ReasonCoverage, millrace.ReasonPageToken,
	millrace.ReasonForbidden, millrace.ReasonNotFound, millrace.ReasonMethod,
}

// fromConnect is [FromStatus] for an error that a connect client returned.
func fromConnect(err error) error {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return err
	}
	var all []any
	for _, d := range ce.Details() {
		if v, bad := d.Value(); bad == nil {
			all = append(all, v)
		}
	}
	if e := fromDetails(all); e != nil {
		return e
	}
	return err
}

// A refusal is the same after any wire, however it was wrapped before.
func TestRefusalsSurviveTheWires(t *testing.T) {
	for _, r := range reasons {
		want := millrace.Error{Reason: r, Field: "a.b", Detail: "wrong", WayOut: "do otherwise", RetryAfter: 2500 * time.Millisecond}
		err := fmt.Errorf("broker: %w", &want)
		for name, back := range map[string]error{"grpc": FromStatus(Status(err)), "connect": fromConnect(Connect(err))} {
			var got *millrace.Error
			if !errors.As(back, &got) || *got != want {
				t.Errorf("%s by %s came back as %+v", r, name, back)
			}
		}
		if code := status.Code(Status(err)); code == codes.Internal || code == codes.Unknown {
			t.Errorf("%s is %s", r, code)
		}
		w := httptest.NewRecorder()
		WriteProblem(w, err)
		var p Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		if p.Reason != r || p.Field != "a.b" || p.Detail != "wrong" || p.WayOut != "do otherwise" || p.Status != w.Code || w.Code == 500 || w.Header().Get("Retry-After") != "3" || p.Type == "" || p.Title == "" {
			t.Errorf("%s: %s", r, w.Body)
		}
	}
}

func TestFieldViolation(t *testing.T) {
	s := status.Convert(Status(&millrace.Error{Reason: millrace.ReasonInvalid, Field: "limit", Detail: "0 is out of range"}))
	for _, d := range s.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok && bad.FieldViolations[0].Field == "limit" {
			return
		}
	}
	t.Errorf("no field violation in %v", s.Details())
}

func TestRetryAfter(t *testing.T) {
	if d, ok := RetryAfter(Status(&millrace.Error{Reason: millrace.ReasonOverloaded})); !ok || d != time.Second {
		t.Errorf("overloaded: %v, %v", d, ok)
	}
	if d, ok := RetryAfter(Status(&millrace.Error{Reason: millrace.ReasonQuota, RetryAfter: time.Minute})); !ok || d != time.Minute {
		t.Errorf("a quota: %v, %v", d, ok)
	}
	w := httptest.NewRecorder()
	if WriteProblem(w, &millrace.Error{Reason: millrace.ReasonInvalid}); w.Header().Get("Retry-After") != "" {
		t.Error("what is wrong for good may be tried again")
	}
	for _, err := range []error{nil, errors.New("x"), Status(&millrace.Error{Reason: millrace.ReasonInvalid}), status.Error(codes.Unavailable, "")} {
		if d, ok := RetryAfter(err); ok {
			t.Errorf("%v: %v", err, d)
		}
	}
}

func TestOtherErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
		http int
	}{
		{errors.New("x"), codes.Internal, 500},
		{context.Canceled, codes.Canceled, 500},
		{context.DeadlineExceeded, codes.DeadlineExceeded, 504},
		{status.Error(codes.NotFound, "x"), codes.NotFound, 500},
		{&millrace.Error{Reason: "NEW"}, codes.Internal, 500},
	} {
		if got := status.Code(Status(c.err)); got != c.code {
			t.Errorf("%v: %s", c.err, got)
		}
		if got := codes.Code(Connect(c.err).Code()); got != c.code {
			t.Errorf("%v by connect: %s", c.err, got)
		}
		if got := ProblemOf(c.err).Status; got != c.http {
			t.Errorf("%v: HTTP %d", c.err, got)
		}
	}
	if Status(nil) != nil || FromStatus(nil) != nil {
		t.Error("no error became one")
	}
	if !errors.Is(FromStatus(status.Error(codes.Canceled, "")), context.Canceled) {
		t.Error("cancelled came back as something else")
	}
	if Refused(errors.New("x")) || Refused(&millrace.Error{Reason: millrace.ReasonUnavailable}) || !Refused(&millrace.Error{Reason: millrace.ReasonTooLarge}) {
		t.Error("Refused is wrong")
	}
}
