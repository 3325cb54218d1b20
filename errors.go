package millrace

import "time"

// Reason is the stable, machine-readable cause of a refusal. Callers switch on
// it; it never changes meaning.
type Reason string

// The reasons for which a request is refused.
const (
	ReasonInvalid     Reason = "INVALID_ARGUMENT"   // a field's value is not acceptable
	ReasonUnknown     Reason = "UNKNOWN_FIELD"      // a field, feed, model or type that does not exist
	ReasonFilter      Reason = "INVALID_FILTER"     // the filter does not parse or type-check
	ReasonTooLarge    Reason = "TOO_LARGE"          // more entities, bytes or cost than allowed
	ReasonOverloaded  Reason = "OVERLOADED"         // shed; retry after a pause
	ReasonQuota       Reason = "QUOTA_EXCEEDED"     // the caller asks more often than it may; retry after a pause
	ReasonUnavailable Reason = "UNAVAILABLE"        // nothing can answer now
	ReasonDeadline    Reason = "DEADLINE_EXCEEDED"  // the deadline passed before an answer
	ReasonCoverage    Reason = "COVERAGE_TOO_SMALL" // the answer covers less than the caller demands
	ReasonPageToken   Reason = "INVALID_PAGE_TOKEN" // not of this cluster, altered, expired, of another request or of a model that is gone
	ReasonNotHere     Reason = "NOT_HERE"           // this replica lacks what is named; another may have it
	ReasonCondemned   Reason = "MODEL_CONDEMNED"    // the version of the model has failed, and must not rank any more
	ReasonForbidden   Reason = "FORBIDDEN"          // the feed, the broker or the caller's roles do not allow it
	ReasonNotFound    Reason = "NOT_FOUND"          // nothing is served under this path, or what is named does not exist
	ReasonMethod      Reason = "METHOD_NOT_ALLOWED" // the path is served by another HTTP method
)

// Error is a refusal that a caller can act on.
type Error struct {
	Reason Reason
	Field  string // the offending field, as the caller wrote it: "limit"
	Detail string // what is wrong
	WayOut string // what to do instead
	// RetryAfter is the pause after which the same request may succeed; 0: not known, or
	// the reason says whether to retry.
	RetryAfter time.Duration
}

// Invalid returns an [*Error] that refuses a field's value, with [ReasonInvalid].
func Invalid(field, detail, wayOut string) error {
	return &Error{Reason: ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut}
}

func (e *Error) Error() string {
	s := e.Detail
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.WayOut != "" {
		s += "; " + e.WayOut
	}
	return s
}
