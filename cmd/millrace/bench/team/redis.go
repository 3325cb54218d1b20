package team

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/freeport"
)

// redis is a redis-server that keeps everything in memory, and nothing on disk.
type redis struct {
	addr    string
	process *rig.Process
}

// startRedis starts the redis-server of PATH. [exec.ErrNotFound] says that there is
// none.
func startRedis(f *rig.Family) (*redis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	addr, err := freeport.Addr()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	r := &redis{addr: addr}
	if r.process, err = f.Launch("redis", exec.Command(path, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", f.Dir)); err != nil {
		return nil, err
	}
	return r, rig.Dialled(f.Ctx, func() error {
		c, err := r.dial()
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (r *redis) dial() (*redisConn, error) {
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		return nil, err
	}
	return &redisConn{Conn: c, in: bufio.NewReaderSize(c, 64<<10)}, nil
}

// redisConn is a connection that speaks as much of RESP 2, the protocol of Redis, as the
// baseline needs. Commands are collected and sent together, and their replies read in order.
type redisConn struct {
	net.Conn
	in  *bufio.Reader
	out []byte
}

// command adds a command to those that send sends next.
func (c *redisConn) command(args ...[]byte) {
	c.out = append(c.out, '*')
	c.out = strconv.AppendInt(c.out, int64(len(args)), 10)
	c.out = append(c.out, "\r\n"...)
	for _, a := range args {
		c.out = append(c.out, '$')
		c.out = strconv.AppendInt(c.out, int64(len(a)), 10)
		c.out = append(c.out, "\r\n"...)
		c.out = append(c.out, a...)
		c.out = append(c.out, "\r\n"...)
	}
}

// send sends the commands.
func (c *redisConn) send() error {
	_, err := c.Write(c.out)
	c.out = c.out[:0]
	return err
}

// number reads the first line of a reply and returns the number in it. kind is the kind of
// reply that it must be: ':' for an integer, '*' for a list, and '$' for a string. For a list
// or a string, the number is the length.
func (c *redisConn) number(kind byte) (int, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	line = bytes.TrimRight(line, "\r\n")
	if len(line) == 0 || line[0] != kind {
		return 0, fmt.Errorf("redis: %q where %q is due", line, kind)
	}
	n := 0
	for _, d := range line[1:] {
		if d < '0' || d > '9' {
			return 0, fmt.Errorf("redis: %q is no number", line)
		}
		n = 10*n + int(d-'0')
	}
	return n, nil
}

// text reads a string. It is valid until the next read.
func (c *redisConn) text() ([]byte, error) {
	n, err := c.number('$')
	if err != nil {
		return nil, err
	}
	b, err := c.in.Peek(n + 2)
	if errors.Is(err, bufio.ErrBufferFull) { // longer than the buffer
		b = make([]byte, n+2)
		_, err = io.ReadFull(c.in, b)
		return b[:max(0, len(b)-2)], err
	}
	if err != nil {
		return nil, err
	}
	_, err = c.in.Discard(n + 2)
	return b[:n], err
}
