package cluster

import (
	"fmt"

	"github.com/millrace/millrace"
)

// refusal is a [millrace.Error] that errors.Is also finds to be sentinel.
type refusal struct{ typed, sentinel error }

func (r refusal) Error() string   { return r.typed.Error() }
func (r refusal) Unwrap() []error { return []error{r.typed, r.sentinel} }

// Refuse returns a [millrace.Error] that errors.Is also finds to be sentinel.
func Refuse(sentinel error, reason millrace.Reason, field, wayOut, format string, args ...any) error {
	return refusal{&millrace.Error{Reason: reason, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}, sentinel}
}
