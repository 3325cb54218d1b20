package rig

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Used is CPU time, user and system together, and resident memory.
type Used struct {
	CPU   time.Duration
	Bytes int64
}

// Less returns the CPU time used since o. Bytes stay those of u.
func (u Used) Less(o Used) Used { return Used{u.CPU - o.CPU, u.Bytes} }

// Plus returns the sum of both.
func (u Used) Plus(o Used) Used { return Used{u.CPU + o.CPU, u.Bytes + o.Bytes} }

// readPS reads a line that ps prints for "time=,rss=": [[days-]hours:]minutes:seconds, and
// resident memory in KiB.
func readPS(line string) (u Used, err error) {
	words := strings.Fields(line)
	if len(words) != 2 {
		return u, fmt.Errorf("ps says %q", line)
	}
	text, days := words[0], 0
	if d, rest, ok := strings.Cut(text, "-"); ok {
		if days, err = strconv.Atoi(d); err != nil {
			return u, fmt.Errorf("ps says %q: %w", line, err)
		}
		text = rest
	}
	seconds := 0.0
	for part := range strings.SplitSeq(text, ":") {
		x, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return u, fmt.Errorf("ps says %q: %w", line, err)
		}
		seconds = 60*seconds + x
	}
	u.CPU = time.Duration(days)*24*time.Hour + time.Duration(seconds*float64(time.Second))
	kib, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		return u, fmt.Errorf("ps says %q: %w", line, err)
	}
	u.Bytes = kib << 10
	return u, nil
}
