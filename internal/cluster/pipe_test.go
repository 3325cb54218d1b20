package cluster_test

import (
	"net"
	"sync"
	"testing"
)

// pipe stands between a client and a server and can stop passing anything on.
type pipe struct {
	l  net.Listener
	to string
	mu sync.RWMutex // held for writing while frozen
}

func startPipe(t *testing.T, to string) *pipe {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	p := &pipe{l: l, to: to}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", p.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go p.copy(in, out)
			go p.copy(out, in)
		}
	}()
	return p
}

func (p *pipe) addr() string { return p.l.Addr().String() }

func (p *pipe) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.RLock()   // waits while frozen
		p.mu.RUnlock() //lint:ignore SA2001 a barrier
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *pipe) freeze() { p.mu.Lock() }
func (p *pipe) thaw()   { p.mu.Unlock() }
