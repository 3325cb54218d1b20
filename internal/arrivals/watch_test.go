package arrivals

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/memory"
)

// watchedPipe returns a connection that is watched, and the other end of it.
func watchedPipe(t *testing.T, within, taken time.Duration) (ours net.Conn, theirs net.Conn) {
	t.Helper()
	l := pipes{make(chan net.Conn, 1)}
	theirs, end := net.Pipe()
	l.accepted <- end
	ours, err := Watch(l, Bounds{Budget: memory.New(1<<20, "requests"), Call: 24 << 20, Arrive: within, Taken: taken}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close(); _ = ours.Close() })
	return ours, theirs
}

// Where there is no room any more a connection goes of the host whose connections hold
// the most together, however little each of them does; and the largest of these.
func TestWhoOpensManyMakesRoom(t *testing.T) {
	w := &watch{bounds: Bounds{Budget: memory.New(1<<20, "requests")}, conns: map[*watched]struct{}{}}
	open := func(host string, held int64) *watched {
		conn, other := net.Pipe()
		c := &watched{Conn: conn, of: w, host: host, held: w.bounds.Budget.BorrowFor(host)}
		t.Cleanup(func() { _ = other.Close(); _ = c.Close() })
		if w.conns[c] = (struct{}{}); c.held.More(held) != nil {
			t.Fatal("the budget is too small")
		}
		return c
	}
	honest := open("honest", 50)
	for range 10 {
		open("many", 10)
	}
	largest := open("many", 11)
	if !w.makeRoom(honest) {
		t.Fatal("nothing was closed for another")
	}
	for c := range w.conns {
		if c == largest {
			t.Error("the largest connection of the host that holds the most is open")
		}
	}
	if len(w.conns) != 11 {
		t.Errorf("%d connections are open", len(w.conns))
	}
	alone := &watch{bounds: w.bounds, conns: map[*watched]struct{}{honest: {}}}
	if alone.makeRoom(honest) {
		t.Error("who holds the most has others closed")
	}
}

// What gRPC drops without a word comes back on a connection that stays, once nothing
// of it can be left, whether or not anything happens there. What is returned leaves
// nothing behind.
func TestLoansOfLostAnswersComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const taken = time.Second
		conn, _ := watchedPipe(t, time.Hour, taken)
		budget := memory.New(1000, "answers")
		keep := func() (giveBack func()) {
			loan := budget.Borrow()
			if err := loan.Hold(100); err != nil {
				t.Fatal(err)
			}
			return Keep(conn.RemoteAddr(), loan)
		}
		for range 3 {
			late := keep()
			time.Sleep(taken)
			keep()
			keep()()
			if held := budget.Held(); held != 200 {
				t.Errorf("%d bytes are held of two answers that may still be read", held)
			}
			time.Sleep(2 * taken)
			late()
			time.Sleep(taken)
			if held := budget.Held(); held != 0 {
				t.Errorf("%d bytes are held in the end", held)
			}
		}
		c := conn.(*watched)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.mu.loans) > 0 || c.mu.recall != nil {
			t.Errorf("%d loans and the timer %v stay", len(c.mu.loans), c.mu.recall)
		}
	})
}

// A stream whose messages say no more than whether a service serves may last, and
// whatever else an answer has is to be read in time, from its first byte.
func TestOnlySmallMessagesMayLast(t *testing.T) {
	const taken = time.Second
	frame := func(kind, flags byte, payload ...byte) []byte {
		return append([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 1}, payload...)
	}
	headers := frame(frameHeaders, flagEndHeaders)
	serves, unknown := frame(frameData, 0, 0, 0, 0, 0, 2, 8, 1), frame(frameData, 0, 0, 0, 0, 0, 0)
	part := frame(frameData, 0, 0, 0, 0, 1, 0, 8, 1) // as long as serves
	trailers := frame(frameHeaders, flagEndHeaders|flagEndStream)
	for name, c := range map[string]struct {
		answer []byte
		late   []byte        // after an hour
		cut    time.Duration // after which it is cut off; 0: it is not
	}{
		"nothing yet":                 {nil, nil, 0},
		"headers":                     {headers, nil, taken},
		"a small message":             {slices.Concat(headers, serves), nil, 0},
		"an empty one":                {slices.Concat(headers, unknown), nil, 0},
		"another one later":           {slices.Concat(headers, serves), slices.Concat(unknown, serves), 0},
		"a part of a large one":       {slices.Concat(headers, part), nil, taken},
		"a part like a small one":     {slices.Concat(headers, part, serves), nil, taken},
		"a large one later":           {slices.Concat(headers, serves), part, time.Hour + taken},
		"a large one later, as small": {slices.Concat(headers, serves), slices.Concat(part, serves), time.Hour + taken},
		"an end":                      {slices.Concat(headers, part, trailers), nil, 0},
		"an end later":                {slices.Concat(headers, serves), slices.Concat(part, trailers), 0},
		"an end after a rest":         {slices.Concat(headers, serves), trailers, 0},
	} {
		for _, piece := range []int{1, 1 << 10} { // that is written at a time
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					conn, caller := watchedPipe(t, time.Minute, taken)
					go func() { _, _ = io.Copy(io.Discard, caller) }()
					ended := make(chan time.Duration, 1)
					go func() {
						_, err := io.Copy(io.Discard, conn)
						if errors.Is(err, errTooLate) {
							ended <- time.Since(began)
						}
					}()
					write := func(to net.Conn, b []byte) {
						for p := range slices.Chunk(b, piece) {
							_, _ = to.Write(p)
						}
					}
					write(caller, slices.Concat(make([]byte, prefaceBytes), frame(frameHeaders, flagEndHeaders|flagEndStream)))
					synctest.Wait()
					write(conn, c.answer)
					time.Sleep(time.Hour)
					write(conn, c.late)
					time.Sleep(time.Hour)
					cut := time.Duration(0)
					select {
					case cut = <-ended:
					default:
					}
					if cut != c.cut {
						t.Errorf("cut off after %s, want %s", cut, c.cut)
					}
					w := conn.(*watched)
					w.mu.Lock()
					defer w.mu.Unlock()
					if w.mu.taking < 0 || w.mu.taking > 1 || c.cut == 0 && w.mu.taking != 0 {
						t.Errorf("%d answers are being read", w.mu.taking)
					}
				})
			})
		}
	}
}

// Who takes back more calls in a second than anyone would who wants answers is
// cut off; who does so over a longer time is not.
func TestCallsThatAreTakenBack(t *testing.T) {
	one := slices.Concat(make([]byte, 3), []byte{frameHeaders, 4, 0, 0, 0, 1}, []byte{0, 0, 4, frameReset, 0, 0, 0, 0, 1, 0, 0, 0, 8})
	for name, c := range map[string]struct {
		each, pause time.Duration // between maxResets calls and as many again
		cut         bool
	}{
		"at once":      {0, 0, true},
		"by and by":    {40 * time.Microsecond, 0, true},
		"taking turns": {0, 1001 * time.Millisecond, false},
		"slowly":       {51 * time.Microsecond, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := pipes{make(chan net.Conn, 1)}
				ours, theirs := net.Pipe()
				l.accepted <- theirs
				conn, _ := Watch(l, Bounds{Budget: memory.New(1<<20, "requests"), Call: 1 << 20, Arrive: time.Hour, Taken: time.Hour}).Accept()
				ended := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, conn)
					ended <- err
				}()
				_, _ = ours.Write(make([]byte, prefaceBytes))
				for i := range 2 * maxResets {
					if i == maxResets {
						time.Sleep(c.pause)
					}
					time.Sleep(c.each)
					if _, err := ours.Write(one); err != nil {
						break
					}
				}
				_ = ours.Close()
				if err := <-ended; c.cut != errors.Is(err, errTakenBack) {
					t.Errorf("it ended with %v", err)
				}
				_ = conn.Close()
			})
		})
	}
}

// pipes is a listener of connections in memory.
type pipes struct{ accepted chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.accepted
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }
