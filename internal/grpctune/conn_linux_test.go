package grpctune

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// A server that is gone without a word is given up by who called it.
func TestALostServerIsGivenUp(t *testing.T) {
	client, _ := pair(t)
	raw, err := client.(*conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var after int
	told := raw.Control(func(fd uintptr) { after, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout) })
	if err := errors.Join(told, err); err != nil {
		t.Fatal(err)
	}
	if got := time.Duration(after) * time.Millisecond; got != 10*time.Second {
		t.Errorf("after %s", got)
	}
}
