package cluster

import (
	"fmt"

	"github.com/millrace/millrace"
)

// refusal is a [millrace.Error] that [errors.Is] takes for sentinel as well.
type refusal struct{ typed, sentinel error }

func (r refusal) Error() string   { return r.typed.Error() }
func (r refusal) Unwrap() []error { return []error{r.typed, r.sentinel} }

// Refuse returns a [millrace.Error] that [errors.Is] takes for sentinel as well.
func Refuse(sentinel error, reason millrace.Reason, field, wayOut, format string, args ...any) error {
	return refusal{&millrace.Error{Reason: reason, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}, sentinel}
}
