package intake

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/memory"
)

// ArriveWithin is how long a request may take to arrive, from its first byte,
// unless somebody says otherwise.
const ArriveWithin = 10 * time.Second

// TakenWithin is how long a caller may take to read an answer, from its first
// byte, unless somebody says otherwise.
const TakenWithin = 30 * time.Second

// Watch returns a listener whose connections speak HTTP/2, as gRPC does, and
// are closed when they ask too much of the server before it can judge their
// requests:
//
//   - a call has not arrived whole in time, counted from its first byte;
//   - a call is larger than any may be, tiny frames counted at what they cost;
//   - calls are taken back faster than anyone would who wants answers;
//   - the bytes of all calls that are not answered are more than the budget:
//     then, of the host that holds the most, the connection that does goes;
//   - an answer is not read in time, counted from its first byte, or nothing at
//     all is.
//
// A stream of answers that say no more than whether a service serves may last:
// gRPC's health service has one for as long as its caller watches.
//
// gRPC itself has none of these bounds: it keeps what has arrived of a message
// until all of it is there, and an answer until all of it is read, for as many
// calls and as long as callers like. So frames are counted as they pass, both
// ways; of their payload only what gRPC puts before a message of the server is
// looked at.
func Watch(l net.Listener, budget *memory.Budget, within, taken time.Duration) net.Listener {
	return &watch{Listener: l, budget: budget, within: within, taken: taken, conns: map[*watched]struct{}{}}
}

type watch struct {
	net.Listener
	budget        *memory.Budget
	within, taken time.Duration

	mu    sync.Mutex // before that of a connection
	conns map[*watched]struct{}
}

// Accept implements net.Listener.
func (w *watch) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &watched{Conn: conn, of: w, host: HostOf(conn.RemoteAddr().String())}
	c.in.left, c.in.frame, c.out.frame, c.out.messages = prefaceBytes, c.received, c.sent, true
	c.mu.calls = map[uint32]*call{}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = struct{}{}
	return c, nil
}

// HostOf returns the host of an address: whose connections those are.
func HostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// makeRoom closes a connection, and reports whether it is another than c: of the host
// whose connections together hold the most, the one that does. Otherwise whoever opens
// many would have those of others closed.
func (w *watch) makeRoom(c *watched) bool {
	w.mu.Lock()
	held := map[string]int64{}
	for other := range w.conns {
		held[other.host] += other.held.Load()
	}
	most := c
	for other := range w.conns {
		if cmp.Or(cmp.Compare(held[other.host], held[most.host]), cmp.Compare(other.held.Load(), most.held.Load())) > 0 {
			most = other
		}
	}
	w.mu.Unlock()
	if most == c {
		return false
	}
	_ = most.Close()
	return true
}

// What the parts of a call are counted at beside their bytes, and how many
// calls of a connection may be taken back in a second: a caller that sends ten
// times what can be answered, with deadlines, takes thousands back, and is no
// attacker.
const (
	callBytes  = 4 << 10
	frameBytes = 64
	maxResets  = 20_000
)

// watched is a connection whose frames are counted.
type watched struct {
	net.Conn
	of      *watch
	host    string
	in, out frames    // of one reader, and of one writer
	writes  time.Time // when the deadline to write was set; the writer's
	held    atomic.Int64

	mu struct {
		sync.Mutex
		closed  bool
		timed   bool                       // there is a deadline to read
		calls   map[uint32]*call           // that are not answered
		arrived int                        // of them whole
		taking  int                        // of them whose answer is being read, but for those that rest
		loans   map[*memory.Loan]time.Time // of answers, since when
		recall  *time.Timer                // of the loans that nobody returns; nil: there are none
		resets  int
		since   time.Time // of resets
	}
	fault error // the reader's
}

// call is one of which the server has not sent all of the answer.
type call struct {
	began  time.Time
	answer time.Time // when its answer began; zero: not yet
	rests  bool      // its answer is read as far as it has been written: small messages, each in a frame,
	large  bool      // or has more than those
	held   int64
	ends   bool // with its headers, of which more is to come
	whole  bool
}

var (
	errTooLate   = errors.New("intake: a call did not arrive, or its answer was not read, in time")
	errTooLarge  = errors.New("intake: a call is larger than any may be")
	errTooMuch   = errors.New("intake: calls that have not arrived hold too much memory")
	errTakenBack = errors.New("intake: too many calls were taken back")
)

// NetConn returns the connection below, as that of crypto/tls does.
func (w *watched) NetConn() net.Conn { return w.Conn }

// Read implements net.Conn.
func (w *watched) Read(p []byte) (int, error) {
	var n int
	var err error
	for again := true; again; {
		if err := w.wait(); err != nil {
			return 0, err
		}
		n, err = w.Conn.Read(p)
		// A deadline may be that of an answer which has been read since.
		again = n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && w.hasDeadline()
	}
	w.in.pass(p[:n])
	if w.fault != nil {
		_ = w.Close()
		return 0, w.fault
	}
	return n, err
}

// wait sets the deadline of the call that has been arriving, or has an answer
// being read, for the longest.
func (w *watched) wait() error {
	w.mu.Lock()
	first := w.deadlineLocked()
	err := w.setLocked(first)
	w.mu.Unlock()
	if !first.IsZero() && !time.Now().Before(first) {
		_ = w.Close()
		return errTooLate
	}
	return err
}

// deadlineLocked returns when the first call is due that makes the server
// wait; zero when none does.
func (w *watched) deadlineLocked() (first time.Time) {
	if len(w.mu.calls) == w.mu.arrived && w.mu.taking == 0 {
		return first
	}
	for _, call := range w.mu.calls {
		var due time.Time
		switch {
		case !call.answer.IsZero() && !call.rests:
			due = call.answer.Add(w.of.taken)
		case !call.whole:
			due = call.began.Add(w.of.within)
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
func (w *watched) hasDeadline() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.timed
}

// setLocked sets the deadline to read.
func (w *watched) setLocked(deadline time.Time) error {
	if deadline.IsZero() && !w.mu.timed {
		return nil
	}
	w.mu.timed = !deadline.IsZero()
	return w.SetReadDeadline(deadline)
}

// Write implements net.Conn. What it writes counts as sent before it is: a
// write may wait for the caller.
func (w *watched) Write(p []byte) (int, error) {
	if now := time.Now(); now.Sub(w.writes) > w.of.taken/4 {
		w.writes = now
		_ = w.SetWriteDeadline(now.Add(w.of.taken))
	}
	w.out.pass(p)
	w.mu.Lock()
	if w.mu.taking > 0 && !w.mu.timed {
		_ = w.setLocked(w.deadlineLocked())
	}
	w.mu.Unlock()
	return w.Conn.Write(p)
}

// RemoteAddr implements net.Conn. See [Keep].
func (w *watched) RemoteAddr() net.Addr { return addr{w.Conn.RemoteAddr(), w} }

// addr is where a watched connection comes from.
type addr struct {
	net.Addr
	conn *watched
}

// Keep returns a loan when the connection from an address ends, unless it was
// returned by what Keep returns. That is nil where the connection is no watched
// one, or has ended. A loan that nobody returns comes back when its answer must
// have been read, or the connection closed: gRPC drops an answer without a word
// where the caller takes the call back while it is handed over.
func Keep(from net.Addr, loan *memory.Loan) (giveBack func()) {
	a, ok := from.(addr)
	if !ok {
		return nil
	}
	c := a.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
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

// lost is how long after an answer was handed to gRPC nothing of it can be left: it
// has begun within the time that a write may take, and is read within as long again.
func (w *watch) lost() time.Duration { return 2 * w.taken }

// recall returns the loans of answers of which nothing can be left.
func (w *watched) recall() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return
	}
	for loan, since := range w.mu.loans {
		if time.Since(since) >= w.of.lost() {
			delete(w.mu.loans, loan)
			loan.Return()
		}
	}
	if w.mu.recall = nil; len(w.mu.loans) > 0 {
		w.mu.recall = time.AfterFunc(w.of.lost()/2, w.recall)
	}
}

// Close implements net.Conn.
func (w *watched) Close() error {
	w.of.mu.Lock()
	delete(w.of.conns, w)
	w.of.mu.Unlock()
	w.mu.Lock()
	if !w.mu.closed {
		w.mu.closed = true
		w.of.budget.Give(w.held.Swap(0))
		for loan := range w.mu.loans {
			loan.Return()
		}
		if w.mu.recall != nil {
			w.mu.recall.Stop()
		}
	}
	w.mu.Unlock()
	return w.Conn.Close()
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
func (w *watched) received(h frameHead) {
	w.mu.Lock()
	of := w.mu.calls[h.stream]
	more := int64(0)
	switch h.kind {
	case frameHeaders:
		if of == nil {
			of = &call{began: time.Now()}
			w.mu.calls[h.stream], more = of, callBytes
		}
		of.ends = of.ends || h.flags&flagEndStream != 0
		w.arrived(of, h.flags&flagEndHeaders != 0)
	case frameContinuation:
		w.arrived(of, h.flags&flagEndHeaders != 0)
	case frameData:
		if of != nil && h.flags&flagEndStream != 0 {
			of.ends = true
			w.arrived(of, true)
		}
	case frameReset:
		if of != nil {
			w.endLocked(h.stream)
		}
		w.resetLocked()
		of = nil
	default:
		of = nil
	}
	if of != nil {
		more += int64(h.length) + frameBytes
		of.held += more
		if of.held > 2*MaxBytes {
			w.fault = errTooLarge
		}
	}
	w.mu.Unlock()
	if of != nil {
		w.hold(more)
	}
}

// arrived notes that a call is whole when it ends and so do its headers.
func (w *watched) arrived(of *call, headersEnd bool) {
	if of != nil && of.ends && headersEnd && !of.whole {
		of.whole = true
		w.mu.arrived++
	}
}

// hold takes bytes of the budget. Only the reader calls it.
func (w *watched) hold(more int64) {
	for !w.of.budget.Take(more) {
		if !w.of.makeRoom(w) {
			w.fault = errTooMuch
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed { // by another, to make room
		w.of.budget.Give(more)
		return
	}
	w.held.Add(more)
}

// resetLocked counts a call that was taken back.
func (w *watched) resetLocked() {
	if now := time.Now(); now.Sub(w.mu.since) > time.Second {
		w.mu.since, w.mu.resets = now, 0
	}
	if w.mu.resets++; w.mu.resets > maxResets {
		w.fault = errTakenBack
	}
}

// sent counts a frame of the server: what begins an answer, and what ends a
// call.
func (w *watched) sent(h frameHead) {
	ends := h.flags&flagEndStream != 0
	switch {
	case h.kind == frameReset || (h.kind == frameHeaders || h.kind == frameData) && ends:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.endLocked(h.stream)
	case h.kind == frameHeaders:
		w.mu.Lock()
		defer w.mu.Unlock()
		if of := w.mu.calls[h.stream]; of != nil && of.answer.IsZero() {
			of.answer = time.Now()
			w.mu.taking++
		}
	case h.kind == frameData:
		w.mu.Lock()
		defer w.mu.Unlock()
		if of := w.mu.calls[h.stream]; of != nil && !of.answer.IsZero() && !of.large {
			w.answeredLocked(of, h.small)
		}
	}
}

// answeredLocked notes what a frame has of an answer of which all before it were
// small messages: one more, or else.
func (w *watched) answeredLocked(of *call, small bool) {
	of.large = !small
	switch {
	case small && !of.rests:
		of.rests = true
		w.mu.taking--
	case !small && of.rests:
		of.rests, of.answer = false, time.Now()
		w.mu.taking++
	}
}

func (w *watched) endLocked(stream uint32) {
	of := w.mu.calls[stream]
	if of == nil {
		return
	}
	delete(w.mu.calls, stream)
	if of.whole {
		w.mu.arrived--
	}
	if !of.answer.IsZero() && !of.rests {
		w.mu.taking--
	}
	if !w.mu.closed {
		w.held.Add(-of.held)
		w.of.budget.Give(of.held)
	}
}

// frames finds the frames of a stream of bytes.
type frames struct {
	frame    func(frameHead)
	messages bool // look at the beginning of messages
	left     int  // of the frame, to be skipped
	head     [frameHeadBytes + messageHeadBytes]byte
	have     int // bytes of head
}

const (
	prefaceBytes     = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frameHeadBytes   = 9
	messageHeadBytes = 5 // of gRPC: whether it is compressed, and its length

	// A health service's word, that a service serves or does not: the number of a
	// field and a value. Nothing else that is served as a stream is as small.
	smallMessageBytes = 2
)

// frameHead is what stands before a frame.
type frameHead struct {
	length      int
	kind, flags byte
	stream      uint32
	small       bool // it is as long as a small message, and says at its beginning that it is one
}

// pass tells of the frames that begin in the next bytes.
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

// wanted is how many bytes of a frame are looked at, as far as it is known.
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
