package door

import (
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Reason is why something is turned away.
type Reason string

// The reasons.
const (
	Full      Reason = "full"      // the port has as many connections as it takes
	Peer      Reason = "peer"      // the address has as many as it may
	Identity  Reason = "identity"  // the caller's identity has as many as it may
	Late      Reason = "late"      // no request of the connection was let in in time
	Handshake Reason = "handshake" // TLS: a certificate is missing or wrong, or it was not TLS
	Unknown   Reason = "unknown"   // a token that is not valid, or a caller without an identity
	Forbidden Reason = "forbidden" // an identity that may not do this
	Origin    Reason = "origin"    // a browser sent the request for a page of another site
	Host      Reason = "host"      // a Host that the port does not know; see [Conn.Knows]
)

var reasons = []Reason{Full, Peer, Identity, Late, Handshake, Unknown, Forbidden, Origin, Host}

// tellEvery is how often the log has a line for one port, address and reason. maxLines is how
// many such lines are counted apart at a time; further addresses share the line of "others".
const (
	tellEvery = 10 * time.Second
	maxLines  = 1000
)

// Refusals counts and logs what the doors of a process turn away. A nil *Refusals does
// neither.
type Refusals struct {
	log   *slog.Logger
	count *prometheus.CounterVec

	mu    sync.Mutex
	lines map[line]*int // how often each has been left out since it was last logged
}

type line struct {
	port, peer string
	reason     Reason
}

// NewRefusals returns Refusals that log to log, and registers their counter.
func NewRefusals(log *slog.Logger, metrics prometheus.Registerer) *Refusals {
	r := &Refusals{log: log, lines: map[line]*int{}, count: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_refused_total", Help: "Connections and requests that a port turned away, by reason: full, peer (an address has its share), identity (who asks has), late (nothing was let in in time), handshake, unknown (no name, or a token that is not believed), forbidden, origin (of another site), host (a name that is not the port's).",
	}, []string{"port", "reason"})}
	metrics.MustRegister(r.count)
	return r
}

// of makes the counters of a port for all reasons, so that each is there at 0.
func (r *Refusals) of(port string) {
	if r == nil {
		return
	}
	for _, reason := range reasons {
		r.count.WithLabelValues(port, string(reason))
	}
}

// tell counts a refusal, and logs it unless its line was logged within tellEvery. err may be
// nil.
func (r *Refusals) tell(port, peer string, reason Reason, err error) {
	if r == nil {
		return
	}
	r.count.WithLabelValues(port, string(reason)).Inc()
	l := line{port, peer, reason}
	r.mu.Lock()
	n, known := r.lines[l]
	if !known && len(r.lines) >= maxLines {
		l.peer = "others"
		n, known = r.lines[l]
	}
	if known {
		*n++
		r.mu.Unlock()
		return
	}
	r.lines[l] = new(int)
	r.mu.Unlock()
	time.AfterFunc(tellEvery, func() { r.more(l) })
	said := []any{"port", port, "peer", l.peer, "reason", reason}
	if err != nil {
		said = append(said, "err", fmt.Sprintf("%.500s", err)) // it may quote much of what was sent
	}
	r.log.Warn("turned away", said...)
}

// more logs how often a line was left out, every tellEvery until it was not left out once.
func (r *Refusals) more(l line) {
	r.mu.Lock()
	n := *r.lines[l]
	if *r.lines[l] = 0; n == 0 {
		delete(r.lines, l)
	}
	r.mu.Unlock()
	if n == 0 {
		return
	}
	time.AfterFunc(tellEvery, func() { r.more(l) })
	r.log.Warn("turned away, again", "port", l.port, "peer", l.peer, "reason", l.reason, "times", n, "within", tellEvery)
}

// Failed counts and logs a handshake that failed, unless the other side only closed the
// connection.
func (c *Conn) Failed(err error) {
	if c != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
		c.Refused(Handshake, err)
	}
}

// ErrorLog returns a log for an HTTP server behind the door. It counts handshakes that
// failed, which such a server tells nowhere but in its log, and logs everything else.
func (d *Door) ErrorLog() *log.Logger { return log.New(httpErrors{d}, "", 0) }

// httpErrors is where an HTTP server's log writes to; see ErrorLog.
type httpErrors struct{ of *Door }

func (h httpErrors) Write(text []byte) (int, error) {
	said := strings.TrimSpace(string(text))
	rest, ok := strings.CutPrefix(said, "http: TLS handshake error from ")
	from, why, cut := strings.Cut(rest, ": ")
	addr, err := net.ResolveTCPAddr("tcp", from) // from is numeric, so nothing is looked up
	switch {
	case !ok || !cut || err != nil:
		slog.Warn("serving HTTP", "err", said)
	case why == "EOF", strings.Contains(why, syscall.ECONNRESET.Error()), strings.Contains(why, net.ErrClosed.Error()):
	default:
		h.of.cfg.Told.tell(h.of.cfg.Port, peerOf(addr).String(), Handshake, errors.New(why))
	}
	return len(text), nil
}
