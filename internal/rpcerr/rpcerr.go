// Package rpcerr carries a [millrace.Error] over the wire and back: as a gRPC
// status with google.rpc details, as a connect error with the same details,
// and as an RFC 9457 problem document for plain HTTP.
package rpcerr

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace"
)

// domain is the domain of ErrorInfo, which says that the reason is one of Millrace's.
const domain = "millrace"

// kinds is the code of each reason on each wire. A reason that is not here is a bug of the
// sender, and is sent as an internal error.
var kinds = map[millrace.Reason]struct {
	code codes.Code
	http int
}{
	millrace.ReasonInvalid:     {codes.InvalidArgument, http.StatusBadRequest},
	millrace.ReasonUnknown:     {codes.InvalidArgument, http.StatusBadRequest},
	millrace.ReasonFilter:      {codes.InvalidArgument, http.StatusBadRequest},
	millrace.ReasonTooLarge:    {codes.InvalidArgument, http.StatusRequestEntityTooLarge},
	millrace.ReasonPageToken:   {codes.InvalidArgument, http.StatusBadRequest},
	millrace.ReasonForbidden:   {codes.PermissionDenied, http.StatusForbidden},
	millrace.ReasonNotFound:    {codes.NotFound, http.StatusNotFound},
	millrace.ReasonMethod:      {codes.Unimplemented, http.StatusMethodNotAllowed},
	millrace.ReasonOverloaded:  {codes.ResourceExhausted, http.StatusTooManyRequests},
	millrace.ReasonQuota:       {codes.ResourceExhausted, http.StatusTooManyRequests},
	millrace.ReasonUnavailable: {codes.Unavailable, http.StatusServiceUnavailable},
	millrace.ReasonCoverage:    {codes.Unavailable, http.StatusServiceUnavailable},
	millrace.ReasonNotHere:     {codes.FailedPrecondition, http.StatusServiceUnavailable},
	millrace.ReasonCondemned:   {codes.FailedPrecondition, http.StatusServiceUnavailable},
	millrace.ReasonDeadline:    {codes.DeadlineExceeded, http.StatusGatewayTimeout},
}

// Refused reports whether err is a [millrace.Error] that says that the request itself is
// wrong, so that no other replica and no later try would accept it.
func Refused(err error) bool {
	var e *millrace.Error
	return errors.As(err, &e) && kinds[e.Reason].code == codes.InvalidArgument
}

// IsRefusal reports whether err is a refusal: a [millrace.Error], which is meant for the
// caller, or an expired deadline. The text of any other error goes over the wire as it is,
// so a server may want to replace it first.
func IsRefusal(err error) bool { return refusalOf(err) != nil }

// refusalOf returns the refusal that err is, with texts of bounded length; nil if it is
// none. An expired deadline becomes a refusal of its own.
func refusalOf(err error) *millrace.Error {
	var e *millrace.Error
	switch {
	case errors.As(err, &e):
		return short(e)
	case errors.Is(err, context.DeadlineExceeded):
		return &millrace.Error{Reason: millrace.ReasonDeadline, Detail: "the deadline passed before an answer", WayOut: "allow more time or ask for fewer entities"}
	}
	return nil
}

// maxText bounds each text of a refusal, in bytes, since it may quote what the caller sent.
const maxText = 1 << 10

// short returns a refusal with texts of at most maxText bytes, and "..." behind one that
// was cut.
func short(e *millrace.Error) *millrace.Error {
	if len(e.Field) <= maxText && len(e.Detail) <= maxText && len(e.WayOut) <= maxText {
		return e
	}
	cut := func(s string) string {
		if len(s) <= maxText {
			return s
		}
		return strings.ToValidUTF8(s[:maxText], "") + "..."
	}
	less := *e
	less.Field, less.Detail, less.WayOut = cut(e.Field), cut(e.Detail), cut(e.WayOut)
	return &less
}

// Status returns err as a gRPC status error, for a server to return; nil for nil. A
// [millrace.Error] keeps its reason, field and way out as google.rpc details. An expired
// deadline and a cancelled context have their own codes, and an error that is a status
// already is returned as it is. Anything else becomes an internal error.
func Status(err error) error {
	if err == nil {
		return nil
	}
	e := refusalOf(err)
	if e == nil {
		if _, ok := status.FromError(err); ok {
			return err
		}
		if errors.Is(err, context.Canceled) {
			return status.Error(codes.Canceled, err.Error())
		}
		return status.Error(codes.Internal, err.Error())
	}
	s := status.New(code(e.Reason), e.Error())
	for _, d := range details(e) {
		if with, err := s.WithDetails(d); err == nil {
			s = with
		}
	}
	return s.Err()
}

// pauses has the reasons for refusals that pass after some time, and how long a caller
// should wait before it tries again if the error itself does not say.
var pauses = map[millrace.Reason]time.Duration{
	millrace.ReasonOverloaded:  time.Second,
	millrace.ReasonQuota:       time.Second,
	millrace.ReasonUnavailable: 200 * time.Millisecond,
	millrace.ReasonCoverage:    200 * time.Millisecond,
}

// RetryAfter returns after which pause a gRPC call may be tried again. err is the error that
// the call returned. RetryAfter returns false if the server did not say.
func RetryAfter(err error) (time.Duration, bool) {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return 0, false
	}
	return retryInfo(s.Details())
}

func retryInfo(details []any) (time.Duration, bool) {
	for _, d := range details {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

func code(r millrace.Reason) codes.Code {
	if k, ok := kinds[r]; ok {
		return k.code
	}
	return codes.Internal
}

// details returns e as google.rpc details: ErrorInfo, BadRequest if there is a field, and
// RetryInfo if there is a pause.
func details(e *millrace.Error) (all []protoadapt.MessageV1) {
	info := &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: domain, Metadata: map[string]string{"detail": e.Detail}}
	if e.WayOut != "" {
		info.Metadata["way_out"] = e.WayOut
	}
	all = append(all, info)
	if e.Field != "" {
		info.Metadata["field"] = e.Field
		all = append(all, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: e.Field, Description: e.Detail, Reason: string(e.Reason)}}})
	}
	if pause := pauseOf(e); pause > 0 {
		all = append(all, &errdetails.RetryInfo{RetryDelay: durationpb.New(pause)})
	}
	return all
}

// pauseOf returns after how long a caller should try again; 0 if that does not help.
func pauseOf(e *millrace.Error) time.Duration { return cmp.Or(e.RetryAfter, pauses[e.Reason]) }

// FromStatus turns the error of a gRPC call into the [millrace.Error] that the server sent,
// or into one for the codes DeadlineExceeded and Unavailable. The code Canceled becomes
// context.Canceled. Any other error is returned unchanged.
func FromStatus(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	if e := fromDetails(s.Details()); e != nil {
		return e
	}
	switch s.Code() {
	case codes.DeadlineExceeded:
		return refusalOf(context.DeadlineExceeded)
	case codes.Canceled:
		return context.Canceled
	case codes.Unavailable:
		return &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: s.Message(), WayOut: "try again after a pause"}
	}
	return err
}

// fromDetails returns the error that details describe; nil if they are not of Millrace.
func fromDetails(all []any) *millrace.Error {
	for _, d := range all {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.Domain != domain {
			continue
		}
		m := info.Metadata
		e := &millrace.Error{Reason: millrace.Reason(info.Reason), Field: m["field"], Detail: m["detail"], WayOut: m["way_out"]}
		if pause, _ := retryInfo(all); pause != pauses[e.Reason] { // else the sender's error gave no pause of its own
			e.RetryAfter = pause
		}
		return e
	}
	return nil
}
