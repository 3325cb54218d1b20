package figure

import (
	"os"
	"strings"
)

// Processor returns the model name of the first processor in /proc/cpuinfo; "" if the file
// has none, as on most ARM machines.
func Processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, name, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(name)
		}
	}
	return ""
}
