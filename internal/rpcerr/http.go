package rpcerr

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/millrace/millrace"
)

// Connect returns err, which is not nil, as a connect error with the code and the details of
// [Status].
func Connect(err error) *connect.Error {
	e := refusalOf(err)
	if e == nil {
		s, _ := status.FromError(Status(err))
		return connect.NewError(connect.Code(s.Code()), errors.New(s.Message()))
	}
	out := connect.NewError(connect.Code(code(e.Reason)), errors.New(e.Error()))
	for _, m := range details(e) {
		if d, err := connect.NewErrorDetail(protoadapt.MessageV2Of(m)); err == nil {
			out.AddDetail(d)
		}
	}
	return out
}

// internal is the reason on the wire of an error that is no refusal.
const internal millrace.Reason = "INTERNAL"

// Reasons returns every reason that a Problem may have, sorted.
func Reasons() []millrace.Reason {
	all := append(slices.Collect(maps.Keys(kinds)), internal)
	slices.Sort(all)
	return all
}

// Problem is an RFC 9457 problem document. Type is "urn:millrace:" and the
// reason in lower case with hyphens for underscores, or "about:blank" for an error that is
// no refusal; Title is the same in words; Reason is the stable name to switch on.
type Problem struct {
	Type   string          `json:"type"`
	Title  string          `json:"title"`
	Status int             `json:"status"`
	Detail string          `json:"detail"`
	Reason millrace.Reason `json:"reason"`
	Field  string          `json:"field,omitempty"`
	WayOut string          `json:"way_out,omitempty"`
}

// ProblemOf returns err, which is not nil, as a problem document.
func ProblemOf(err error) Problem {
	e := refusalOf(err)
	if e == nil {
		return Problem{Type: "about:blank", Title: "internal error", Status: http.StatusInternalServerError, Detail: err.Error(), Reason: internal}
	}
	reason, status := internal, http.StatusInternalServerError
	if k, ok := kinds[e.Reason]; ok {
		reason, status = e.Reason, k.http
	}
	name := strings.ToLower(string(reason))
	return Problem{
		Type: "urn:millrace:" + strings.ReplaceAll(name, "_", "-"), Title: strings.ReplaceAll(name, "_", " "),
		Status: status, Detail: e.Detail, Reason: reason, Field: e.Field, WayOut: e.WayOut,
	}
}

// WriteProblem answers a request with err as application/problem+json. If the request may
// succeed after a pause, the header Retry-After says so, in seconds.
func WriteProblem(w http.ResponseWriter, err error) {
	p := ProblemOf(err)
	w.Header().Set("Content-Type", "application/problem+json")
	if e := refusalOf(err); e != nil && pauseOf(e) > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(pauseOf(e).Seconds()))))
	}
	w.WriteHeader(p.Status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p)
}
