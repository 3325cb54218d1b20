package backup

import (
	"fmt"
	"time"
)

// String returns the sample as people read it: "1.2 of 3.4 GiB, 118 MiB/s,
// 19s left".
func (s Sample) String() string {
	line := Bytes(s.Done)
	if s.Total > 0 {
		line += " of " + Bytes(s.Total)
	}
	if s.BytesPerSecond > 0 {
		line += ", " + Bytes(int64(s.BytesPerSecond)) + "/s"
	}
	if s.Left >= 0 && s.Done < s.Total {
		line += ", " + s.Left.Round(time.Second).String() + " left"
	}
	return line
}

// Bytes returns a count of bytes as people read it.
func Bytes(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1024, 0
	for v >= 1024 && unit < 3 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGT"[unit])
}
