package roles

import (
	"net"
	"os"
	"testing"
)

// A partitioner is found by its admin port, on this machine where that is on all addresses.
func TestWhereAPartitionerIsFound(t *testing.T) {
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for admin, want := range map[string]string{
		"":               "",
		"10.0.0.5:6061":  "10.0.0.5:6061",
		"p1:6061":        "p1:6061",
		":6061":          net.JoinHostPort(machine, "6061"),
		"0.0.0.0:6061":   net.JoinHostPort(machine, "6061"),
		"[::]:6061":      net.JoinHostPort(machine, "6061"),
		"127.0.0.1:6061": "127.0.0.1:6061",
	} {
		c := &partitionerConfig{Common: Common{Admin: admin}}
		if got := c.partitioner().Address; got != want {
			t.Errorf("%q: %q, want %q", admin, got, want)
		}
	}
}
