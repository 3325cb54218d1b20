// Package arrivals bounds what the connections of a gRPC port may hold, from a request's
// first byte until its answer is read. It bounds their memory, by a budget that all
// connections share, and their time.
package arrivals

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/memory"
)

// Bounds are what the connections of a port may take. A frame is a piece of HTTP/2: a head of
// 9 bytes, and a payload.
type Bounds struct {
	Budget *memory.Budget // for the bytes of calls that are not answered
	Call   int64          // bytes that one call may hold, each frame counted as 64 bytes more than its payload
	Arrive time.Duration  // within which a call must have arrived; 0: any time
	Taken  time.Duration  // within which an answer must be read; 0: any time
}

// Watch returns a listener for connections that speak HTTP/2, as gRPC does. It closes a
// connection that takes too much of the server before its requests can be judged:
//
//   - A call has not arrived whole in time, counted from its first byte.
//   - A call is larger than any may be, with each frame counted as 64 bytes more.
//   - The caller takes back (resets) more than maxResets calls in a second.
//   - The bytes of all calls that are not answered are more than the budget, or those of one
//     host are too much of it ([memory.Budget.BorrowFor]). Then the connection that holds the
//     most is closed, of the host whose connections together hold the most.
//   - An answer is not read in time, counted from its first byte, or a write of the server
//     takes longer than that.
//
// A stream may last if its answers are small messages, which say no more than whether a
// service serves: gRPC's health service has one for as long as its caller watches.
//
// gRPC itself has none of these bounds. It keeps what has arrived of a message until all of
// it is there, and an answer until all of it is read, for any number of calls and any time.
// So Watch counts frames as they pass, both ways. It does not look at their payload, except
// for the five bytes that gRPC puts before a message of the server.
func Watch(l net.Listener, b Bounds) net.Listener {
	return &watch{Listener: l, bounds: b, conns: map[*watched]struct{}{}}
}

type watch struct {
	net.Listener
	bounds Bounds

	mu    sync.Mutex // is taken before the lock of a connection
	conns map[*watched]struct{}
}

// Accept implements net.Listener.
func (w *watch) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	host := HostOf(conn.RemoteAddr().String())
	c := &watched{Conn: conn, of: w, host: host, held: w.bounds.Budget.BorrowFor(host)}
	c.in.left, c.in.frame, c.out.frame, c.out.messages = prefaceBytes, c.received, c.sent, true
	c.mu.calls = map[uint32]*call{}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = struct{}{}
	return c, nil
}

// HostOf returns the host of an address, by which connections are counted together. An
// address without a port is returned as it is.
func HostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// makeRoom closes the connection that most returns, unless that is c, and reports whether it
// did. Hosts are compared before connections: otherwise a host that opens many connections,
// each with little, would have those of others closed.
func (w *watch) makeRoom(c *watched) bool {
	most := w.most(c)
	if most == c {
		return false
	}
	_ = most.Close()
	return true
}

// most returns the connection that holds the most bytes, of the host whose connections
// together hold the most. It returns c if no other holds more by that order.
func (w *watch) most(c *watched) *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := map[string]int64{}
	for other := range w.conns {
		held[other.host] += other.held.Held()
	}
	most := c
	for other := range w.conns {
		if cmp.Or(cmp.Compare(held[other.host], held[most.host]), cmp.Compare(other.held.Held(), most.held.Held())) > 0 {
			most = other
		}
	}
	return most
}

const (
	callBytes  = 4 << 10 // what a call counts beside its frames
	frameBytes = 64      // what a frame counts beside the bytes of its payload
	// maxResets is how many calls of a connection may be taken back in a second. A caller
	// that sends ten times what can be answered, with deadlines, takes back thousands, and
	// is no attacker.
	maxResets = 20_000
)

// watched is a connection whose frames are counted.
type watched struct {
	net.Conn
	of      *watch
	host    string
	in, out frames       // for one goroutine that reads, and one that writes
	writes  time.Time    // when the deadline to write was set; only the writer uses it
	held    *memory.Loan // for the bytes of its calls

	mu struct {
		sync.Mutex
		closed  bool
		timed   bool                       // there is a deadline to read
		calls   map[uint32]*call           // by stream, those that are not answered
		arrived int                        // how many of them are whole
		taking  int                        // how many of them have begun an answer and do not rest
		loans   map[*memory.Loan]time.Time // of answers, by when Keep took them over
		recall  *time.Timer                // calls recall; nil: there are no loans
		resets  int                        // calls taken back since the time since
		since   time.Time
	}
	fault error // why the connection is to be closed; only the reader uses it
}

// call is a call of which the server has not sent all of the answer.
type call struct {
	began  time.Time
	answer time.Time // when its answer began; zero: not yet
	rests  bool      // its answer so far is small messages, each in a frame: it has no deadline
	large  bool      // its answer has more than small messages
	held   int64     // bytes that it counts
	ends   bool      // the caller has said that no more data follows; the rest of the headers may
	whole  bool      // all of it has arrived
}

var (
	errTooLate   = errors.New("arrivals: a call did not arrive, or its answer was not read, in time")
	errTooLarge  = errors.New("arrivals: a call is larger than any may be")
	errTooMuch   = errors.New("arrivals: calls that have not arrived hold too much memory")
	errTakenBack = errors.New("arrivals: too many calls were taken back")
)

// NetConn returns the connection below, as the method of [crypto/tls.Conn] does.
func (c *watched) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *watched) Read(p []byte) (int, error) {
	var n int
	var err error
	for again := true; again; {
		if err := c.wait(); err != nil {
			return 0, err
		}
		n, err = c.Conn.Read(p)
		// The deadline may have been that of an answer which has been read since.
		again = n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.hasDeadline()
	}
	c.in.pass(p[:n])
	if c.fault != nil {
		_ = c.Close()
		return 0, c.fault
	}
	return n, err
}

// wait sets the deadline to read to the earliest of all calls. If that is over, it closes the
// connection and returns errTooLate.
func (c *watched) wait() error {
	c.mu.Lock()
	first := c.deadlineLocked()
	err := c.setLocked(first)
	c.mu.Unlock()
	if !first.IsZero() && !time.Now().Before(first) {
		_ = c.Close()
		return errTooLate
	}
	return err
}

// deadlineLocked returns the earliest time by which a call must have arrived or its answer
// must be read; zero if there is none.
func (c *watched) deadlineLocked() (first time.Time) {
	if len(c.mu.calls) == c.mu.arrived && c.mu.taking == 0 {
		return first
	}
	for _, call := range c.mu.calls {
		var due time.Time
		switch {
		case !call.answer.IsZero() && !call.rests:
			if c.of.bounds.Taken == 0 {
				continue
			}
			due = call.answer.Add(c.of.bounds.Taken)
		case !call.whole && c.of.bounds.Arrive > 0:
			due = call.began.Add(c.of.bounds.Arrive)
		default:
			continue
		}
		if first.IsZero() || due.Before(first) {
			first = due
		}
	}
	return first
}

// hasDeadline reports whether the deadline to read is one that wait or Write has set.
func (c *watched) hasDeadline() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.timed
}

// setLocked sets the deadline to read.
func (c *watched) setLocked(deadline time.Time) error {
	if deadline.IsZero() && !c.mu.timed {
		return nil
	}
	c.mu.timed = !deadline.IsZero()
	return c.SetReadDeadline(deadline)
}

// Write implements net.Conn. What it writes counts as sent before the write, since a write
// may wait until the caller reads.
func (c *watched) Write(p []byte) (int, error) {
	if taken := c.of.bounds.Taken; taken > 0 {
		if now := time.Now(); now.Sub(c.writes) > taken/4 {
			c.writes = now
			_ = c.SetWriteDeadline(now.Add(taken))
		}
	}
	c.out.pass(p)
	c.mu.Lock()
	if c.mu.taking > 0 && !c.mu.timed {
		_ = c.setLocked(c.deadlineLocked())
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// RemoteAddr implements net.Conn. [Keep] and [Room] find the connection by it.
func (c *watched) RemoteAddr() net.Addr { return addr{c.Conn.RemoteAddr(), c} }

// roomBytes is how much of a call may arrive before anybody reads it: what [Room] asks for.
const roomBytes = 1 << 20

// Room decides by a call's headers whether there is room in the budget for it. If there is
// none and another host holds the most, that host's largest connection is closed, to make
// room. Else the call is refused with an error, and nothing is closed. A call from an
// address that is not of a watched connection is let in.
func Room(from net.Addr) error {
	a, ok := from.(addr)
	if !ok {
		return nil
	}
	c := a.conn
	loan := c.of.bounds.Budget.BorrowFor(c.host)
	defer loan.Return()
	for {
		err := loan.More(roomBytes)
		if err == nil {
			return nil
		}
		most := c.of.most(c)
		if most.host == c.host {
			return err
		}
		_ = most.Close()
	}
}

// addr is the remote address of a watched connection.
type addr struct {
	net.Addr
	conn *watched
}

// Keep takes over a loan for an answer, and returns a function that gives it back once the
// answer is written. If nobody calls the function, the loan comes back when the connection
// closes, or after the time in which the answer must have been read. That is needed since
// gRPC drops an answer without a word if the caller takes the call back while it is handed
// over.
//
// The function is nil, and the loan still the caller's, if the connection is not a watched
// one, has ended, or may take any time to read answers.
func Keep(from net.Addr, loan *memory.Loan) (giveBack func()) {
	a, ok := from.(addr)
	if !ok {
		return nil
	}
	c := a.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.of.bounds.Taken == 0 {
		return nil
	}
	if c.mu.loans == nil {
		c.mu.loans = map[*memory.Loan]time.Time{}
	}
	c.mu.loans[loan] = time.Now()
	if c.mu.recall == nil {
		c.mu.recall = time.AfterFunc(c.of.lost(), c.recall)
	}
	return func() {
		c.mu.Lock()
		delete(c.mu.loans, loan)
		c.mu.Unlock()
		loan.Return()
	}
}

// lost returns the time after which nothing is left of an answer that was handed to gRPC: it
// begins within the time that a write may take, and is read within as long again.
func (w *watch) lost() time.Duration { return 2 * w.bounds.Taken }

// recall gives back loans that are older than [watch.lost], whose answers must be gone.
func (c *watched) recall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return
	}
	for loan, since := range c.mu.loans {
		if time.Since(since) >= c.of.lost() {
			delete(c.mu.loans, loan)
			loan.Return()
		}
	}
	if c.mu.recall = nil; len(c.mu.loans) > 0 {
		c.mu.recall = time.AfterFunc(c.of.lost()/2, c.recall)
	}
}

// Close implements net.Conn.
func (c *watched) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	c.mu.Lock()
	if !c.mu.closed {
		c.mu.closed = true
		c.held.Return()
		for loan := range c.mu.loans {
			loan.Return()
		}
		if c.mu.recall != nil {
			c.mu.recall.Stop()
		}
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// The kinds and flags of frames that matter here.
const (
	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameContinuation = 9
	flagEndStream     = 1
	flagEndHeaders    = 4
)

// received counts a frame of the caller.
func (c *watched) received(h frameHead) {
	c.mu.Lock()
	of := c.mu.calls[h.stream]
	more := int64(0)
	switch h.kind {
	case frameHeaders:
		if of == nil {
			of = &call{began: time.Now()}
			c.mu.calls[h.stream], more = of, callBytes
		}
		of.ends = of.ends || h.flags&flagEndStream != 0
		c.arrived(of, h.flags&flagEndHeaders != 0)
	case frameContinuation:
		c.arrived(of, h.flags&flagEndHeaders != 0)
	case frameData:
		if of != nil && h.flags&flagEndStream != 0 {
			of.ends = true
			c.arrived(of, true)
		}
	case frameReset:
		if of != nil {
			c.endLocked(h.stream)
		}
		c.resetLocked()
		of = nil
	default:
		of = nil
	}
	if of != nil {
		more += int64(h.length) + frameBytes
		of.held += more
		if of.held > c.of.bounds.Call {
			c.fault = errTooLarge
		}
	}
	c.mu.Unlock()
	if of != nil {
		c.hold(more)
	}
}

// arrived notes that a call is whole if its data and its headers have ended.
func (c *watched) arrived(of *call, headersEnd bool) {
	if of != nil && of.ends && headersEnd && !of.whole {
		of.whole = true
		c.mu.arrived++
	}
}

// hold takes bytes from the budget. If there are not enough, it closes other connections to
// make room, and sets fault if c itself is the one to close. Only the reader calls it.
func (c *watched) hold(more int64) {
	for c.held.More(more) != nil {
		if !c.of.makeRoom(c) {
			c.fault = errTooMuch
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed { // by another, to make room
		c.held.Return()
	}
}

// resetLocked counts a call that was taken back.
func (c *watched) resetLocked() {
	if now := time.Now(); now.Sub(c.mu.since) > time.Second {
		c.mu.since, c.mu.resets = now, 0
	}
	if c.mu.resets++; c.mu.resets > maxResets {
		c.fault = errTakenBack
	}
}

// sent notes a frame of the server that begins an answer, is part of one, or ends a call.
func (c *watched) sent(h frameHead) {
	ends := h.flags&flagEndStream != 0
	switch {
	case h.kind == frameReset || (h.kind == frameHeaders || h.kind == frameData) && ends:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endLocked(h.stream)
	case h.kind == frameHeaders:
		c.mu.Lock()
		defer c.mu.Unlock()
		if of := c.mu.calls[h.stream]; of != nil && of.answer.IsZero() {
			of.answer = time.Now()
			c.mu.taking++
		}
	case h.kind == frameData:
		c.mu.Lock()
		defer c.mu.Unlock()
		if of := c.mu.calls[h.stream]; of != nil && !of.answer.IsZero() && !of.large {
			c.answeredLocked(of, h.small)
		}
	}
}

// answeredLocked notes a frame of an answer that had only small messages so far. Small says
// whether this frame is one more.
func (c *watched) answeredLocked(of *call, small bool) {
	of.large = !small
	switch {
	case small && !of.rests:
		of.rests = true
		c.mu.taking--
	case !small && of.rests:
		of.rests, of.answer = false, time.Now()
		c.mu.taking++
	}
}

// endLocked notes that a call has ended, and gives back what it counted.
func (c *watched) endLocked(stream uint32) {
	of := c.mu.calls[stream]
	if of == nil {
		return
	}
	delete(c.mu.calls, stream)
	if of.whole {
		c.mu.arrived--
	}
	if !of.answer.IsZero() && !of.rests {
		c.mu.taking--
	}
	if !c.mu.closed {
		_ = c.held.More(-of.held)
	}
}

// frames finds the frames in a stream of bytes.
type frames struct {
	frame    func(frameHead)
	messages bool // look at the beginning of messages
	left     int  // bytes of the present frame that are to be skipped
	head     [frameHeadBytes + messageHeadBytes]byte
	have     int // how many bytes of head are there
}

const (
	prefaceBytes     = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") // what a client of HTTP/2 sends before its first frame
	frameHeadBytes   = 9
	messageHeadBytes = 5 // of gRPC: whether it is compressed, and its length

	// smallMessageBytes is the length of a health service's message, which says whether a
	// service serves: a field's number and a value. No other stream has such small messages.
	smallMessageBytes = 2
)

// frameHead is what stands before a frame.
type frameHead struct {
	length      int
	kind, flags byte
	stream      uint32
	small       bool // it is as long as a small message, and says at its beginning that it is one
}

// pass reads the next bytes of the stream, and calls frame with each head that ends in them.
func (f *frames) pass(p []byte) {
	for len(p) > 0 {
		if f.left > 0 {
			n := min(f.left, len(p))
			f.left -= n
			p = p[n:]
			continue
		}
		n := copy(f.head[f.have:f.wanted()], p)
		f.have += n
		p = p[n:]
		if f.have < f.wanted() {
			continue
		}
		h := f.read()
		f.left, f.have = h.length-(f.have-frameHeadBytes), 0
		f.frame(h)
	}
}

// wanted returns how many bytes of a frame are looked at. It rises once the frame's head says
// that the frame is as short as a small message.
func (f *frames) wanted() int {
	if f.have < frameHeadBytes || !f.messages {
		return frameHeadBytes
	}
	if h := f.read(); h.kind != frameData || h.length < messageHeadBytes || h.length > messageHeadBytes+smallMessageBytes {
		return frameHeadBytes
	}
	return frameHeadBytes + messageHeadBytes
}

// read reads what there is of the head.
func (f *frames) read() frameHead {
	b := &f.head
	h := frameHead{length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: b[3], flags: b[4], stream: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31)}
	if f.have == len(b) {
		h.small = int(binary.BigEndian.Uint32(b[frameHeadBytes+1:])) == h.length-messageHeadBytes
	}
	return h
}
