package grpctune

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not have for every processor.
const tcpUserTimeout = 18

// giveUp has the operating system end the connection once it is lost; see lostAfter. It is
// for [net.Dialer.Control]. If the system does not know the option, the connection is used
// without it.
func giveUp(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(lostAfter.Milliseconds()))
	})
}

// conn is a TCP connection that reads and writes without telling Go's
// scheduler. The scheduler otherwise prepares for a call that blocks. These calls
// do not block: the socket is non-blocking, and the runtime's poller waits for it.
// But a write takes 20 µs or more on loopback, where it carries the bytes to the
// reader's side. After 20 µs the runtime's monitor takes the processor away from
// the call, wakes another thread for it, and goes on looking every 20 µs. With
// one processor for a process (GOMAXPROCS, a container's limit) that costs a
// sixth of a broker's and a node's CPU time, and half of the p99 latency.
type conn struct {
	*net.TCPConn
	in, out transfer
}

// tune returns a conn that reads and writes by c; it returns c itself if that is no TCP
// connection.
func tune(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	t := &conn{TCPConn: tcp}
	t.in = transfer{call: syscall.SYS_READ, name: "read", wait: raw.Read, addr: tcp.RemoteAddr()}
	t.out = transfer{call: syscall.SYS_WRITE, name: "write", wait: raw.Write, addr: tcp.RemoteAddr()}
	t.in.try, t.out.try = t.in.once, t.out.once
	return t
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.in.Lock()
	defer c.in.Unlock()
	n, err := c.in.some(p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (n int, err error) {
	c.out.Lock()
	defer c.out.Unlock()
	for n < len(p) && err == nil {
		var m int
		m, err = c.out.some(p[n:])
		n += m
	}
	return n, err
}

// transfer is one direction of a connection, for one call at a time.
type transfer struct {
	sync.Mutex
	call uintptr                               // SYS_READ or SYS_WRITE
	name string                                // the call's name, for errors
	addr net.Addr                              // of the other side, for errors
	wait func(try func(fd uintptr) bool) error // calls try when the socket is ready, until it returns true
	try  func(fd uintptr) bool                 // the method once, bound in advance so that a call allocates nothing

	// Of the call that is made now.
	p     []byte
	n     int // bytes that were read or written
	errno syscall.Errno
}

// some reads into p or writes from it, once, and returns how many bytes that was.
func (t *transfer) some(p []byte) (int, error) {
	t.p, t.n, t.errno = p, 0, 0
	err := t.wait(t.try)
	t.p = nil
	if err == nil && t.errno != 0 {
		err = &net.OpError{Op: t.name, Net: "tcp", Addr: t.addr, Err: os.NewSyscallError(t.name, t.errno)}
	}
	return t.n, err
}

// once makes the system call, and reports whether it is done: false if it would block.
func (t *transfer) once(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(t.call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.p))), uintptr(len(t.p)))
		switch errno {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		case 0:
			t.n = int(n)
		}
		t.errno = errno
		return true
	}
}
