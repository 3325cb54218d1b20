package rig

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

func TestReadPS(t *testing.T) {
	for line, want := range map[string]Used{
		"  0:01.25  2048\n": {1250 * time.Millisecond, 2 << 20},
		"00:00:03 10":       {3 * time.Second, 10 << 10},
		"1-02:03:04 1":      {26*time.Hour + 3*time.Minute + 4*time.Second, 1 << 10},
	} {
		if got, err := readPS(line); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", line, got, err, want)
		}
	}
	for _, line := range []string{"", "1:00", "x 1", "0:01 y", "d-0:01 1"} {
		if got, err := readPS(line); err == nil {
			t.Errorf("%q is %v", line, got)
		}
	}
}

// A process that works uses CPU time, as much as it says itself.
func TestUsed(t *testing.T) {
	before, err := used(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	own := OwnCPU()
	for OwnCPU()-own < 100*time.Millisecond {
	}
	after, err := used(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if d := after.Less(before).CPU; d < 80*time.Millisecond {
		t.Errorf("%v of 100 ms", d)
	}
	if after.Bytes < 1<<20 {
		t.Errorf("%d bytes are resident", after.Bytes)
	}
}

func TestListener(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("told on Linux alone")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if pid, err := listener(addr); err != nil || pid != os.Getpid() {
		t.Errorf("process %d listens, %v; want %d", pid, err, os.Getpid())
	}
	l.Close()
	if pid, err := listener(addr); err == nil {
		t.Errorf("process %d listens where nobody does", pid)
	}
}
