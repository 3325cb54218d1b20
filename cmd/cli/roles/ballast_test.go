package roles

import (
	"runtime/metrics"
	"testing"
)

// The collector waits for twice the ballast, which takes no memory.
func TestSpareCollector(t *testing.T) {
	read := func(name string) uint64 {
		s := []metrics.Sample{{Name: name}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	defer func() { ballast = nil }()
	SpareCollector()
	if goal := read("/gc/heap/goal:bytes"); goal < 2*ballastBytes {
		t.Errorf("the goal is %d bytes, want at least %d", goal, 2*ballastBytes)
	}
}
