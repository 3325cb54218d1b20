package command

import (
	"fmt"

	"github.com/millrace/millrace"
)

// The bounds of a chance of being wrong. With a smaller one, intervals come out as no
// numbers. With a larger one, an interval is more often wrong than right.
const (
	minChance = 1e-12
	maxChance = 0.5
)

// CheckChance refuses the value of a flag that is out of the bounds of a chance of being
// wrong.
func CheckChance(flag string, alpha float64) error {
	if alpha >= minChance && alpha <= maxChance {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: flag, Detail: fmt.Sprintf("%v is no probability of being wrong that serves", alpha), WayOut: fmt.Sprintf("say one from %v to %v, such as 0.05", minChance, maxChance)}
}
