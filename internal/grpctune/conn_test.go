package grpctune

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		var err error
		server, err = l.Accept()
		accepted <- err
	}()
	client, err = dial(t.Context(), l.Addr().String())
	if err = errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// More than fits into a socket's buffers comes through both ways at once, and
// then the end.
func TestConnCarriesEverything(t *testing.T) {
	sent := make([]byte, 16<<20)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(sent)
	client, server := pair(t)
	echoed := make(chan error, 1)
	go func() {
		_, err := io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server})
		echoed <- errors.Join(err, server.(interface{ CloseWrite() error }).CloseWrite())
	}()
	go func() {
		client.Write(sent)
		client.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(struct{ io.Reader }{client})
	if err = errors.Join(err, <-echoed); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back, not the %d sent", len(got), len(sent))
	}
}

func TestConnErrors(t *testing.T) {
	for name, c := range map[string]struct {
		provoke func(client, server net.Conn)
		call    func(net.Conn) (int, error)
		want    error
	}{
		"deadline": {func(c, _ net.Conn) { c.SetReadDeadline(time.Now()) }, read, os.ErrDeadlineExceeded},
		"closed":   {func(c, _ net.Conn) { c.Close() }, read, net.ErrClosed},
		"write closed": {func(c, _ net.Conn) { c.Close() },
			func(c net.Conn) (int, error) { return c.Write([]byte("x")) }, net.ErrClosed},
		"end":   {func(_, s net.Conn) { s.Close() }, read, io.EOF},
		"reset": {func(_, s net.Conn) { reset(t, s) }, read, syscall.ECONNRESET},
		"nothing wanted": {func(_, s net.Conn) { s.Close() },
			func(c net.Conn) (int, error) { return c.Read(nil) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t)
			c.provoke(client, server)
			if n, err := c.call(client); n != 0 || !errors.Is(err, c.want) {
				t.Errorf("%d bytes, %v; want none, %v", n, err, c.want)
			}
		})
	}
}

func read(c net.Conn) (int, error) { return c.Read(make([]byte, 10)) }

func reset(t *testing.T, c net.Conn) {
	if err := c.(interface{ SetLinger(int) error }).SetLinger(0); err != nil {
		t.Error(err)
	}
	c.Close()
}

// Close ends a read that waits.
func TestConnCloseEndsRead(t *testing.T) {
	client, _ := pair(t)
	ended := make(chan error, 1)
	go func() {
		_, err := read(client)
		ended <- err
	}()
	client.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the read ended with %v", err)
	}
}

func TestDialTellsWhatIsWrong(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial(ctx, "127.0.0.1:1"); err == nil {
		t.Error("dialled after the end")
	}
}

// A message in memory that is there already allocates nothing on its way.
func TestConnAllocatesNothing(t *testing.T) {
	client, server := pair(t)
	b := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := client.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, b); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
