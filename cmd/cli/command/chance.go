package command

import (
	"fmt"

	"github.com/millrace/millrace"
)

// The bounds of a chance of being wrong. Below, what is computed by it is no number; above,
// an interval is more often wrong than right.
const (
	minChance = 1e-12
	maxChance = 0.5
)

// CheckChance refuses what a flag says of the chance of being wrong where that is none.
func CheckChance(flag string, alpha float64) error {
	if alpha >= minChance && alpha <= maxChance {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: flag, Detail: fmt.Sprintf("%v is no chance to be wrong", alpha), WayOut: fmt.Sprintf("say one from %v to %v, such as 0.05", minChance, maxChance)}
}
