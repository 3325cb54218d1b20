package cluster

import (
	"fmt"

	"github.com/millrace/millrace"
)

// refusal is a typed refusal that a caller can act on.
type refusal struct{ says, is error }

func (r refusal) Error() string   { return r.says.Error() }
func (r refusal) Unwrap() []error { return []error{r.says, r.is} }

// Refuse is a [millrace.Error] that a caller can also tell by is.
func Refuse(is error, reason millrace.Reason, field, wayOut, format string, args ...any) error {
	return refusal{&millrace.Error{Reason: reason, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}, is}
}
