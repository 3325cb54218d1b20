package intake

import (
	"net"
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
	ours, err := Watch(l, memory.New(1<<20, "requests"), within, taken).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close(); _ = ours.Close() })
	return ours, theirs
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
