package intake

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// DefaultConns is how many connections a port takes at a time unless somebody
// says otherwise: each may take 32 KiB before it has said anything.
const DefaultConns = 4096

// Cap returns a listener that takes so many connections of l at a time. It
// tells those beyond by refusal, if there is one, and closes them.
func Cap(l net.Listener, conns int, refusal string) net.Listener {
	return &capped{Listener: l, free: make(chan struct{}, conns), refusal: refusal}
}

const refusalBody = `{"type":"urn:millrace:overloaded","title":"overloaded","status":503,"detail":"too many connections","reason":"OVERLOADED","way_out":"use connections again, and try again after a second"}`

// RefusalHTTP is what a connection beyond the cap reads that speaks plain HTTP.
var RefusalHTTP = fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(refusalBody), refusalBody)

type capped struct {
	net.Listener
	free    chan struct{}
	refusal string
}

// Accept implements net.Listener.
func (c *capped) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case c.free <- struct{}{}:
			return &counted{Conn: conn, of: c}, nil
		default:
		}
		if c.refusal != "" {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Millisecond)) // what does not fit is not told
			_, _ = conn.Write([]byte(c.refusal))
		}
		_ = conn.Close()
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	of   *capped
	once sync.Once
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(func() { <-c.of.free })
	return c.Conn.Close()
}
