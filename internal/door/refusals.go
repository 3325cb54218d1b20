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
	Peer      Reason = "peer"      // the address has
	Identity  Reason = "identity"  // who asks has
	Late      Reason = "late"      // no request of a connection was let in, in time
	Handshake Reason = "handshake" // TLS: a certificate is missing or wrong, or it was no TLS
	Unknown   Reason = "unknown"   // a token that is not believed, or no name at all
	Forbidden Reason = "forbidden" // a name that may not do this
	Origin    Reason = "origin"    // a browser has the request from another site
	Host      Reason = "host"      // a name that is not the port's: another site may have pointed it here
)

var reasons = []Reason{Full, Peer, Identity, Late, Handshake, Unknown, Forbidden, Origin, Host}

// tellEvery is how often the log has a line of one address and reason, and
// maxLines how many of those it knows at a time: others are in one line.
const (
	tellEvery = 10 * time.Second
	maxLines  = 1000
)

// Refusals counts and logs what the doors of a process turn away. A nil one does
// neither.
type Refusals struct {
	log   *slog.Logger
	count *prometheus.CounterVec

	mu    sync.Mutex
	lines map[line]*int // how often, since it was last logged
}

type line struct {
	port, peer string
	reason     Reason
}

// NewRefusals registers how often ports turned something away.
func NewRefusals(log *slog.Logger, metrics prometheus.Registerer) *Refusals {
	r := &Refusals{log: log, lines: map[line]*int{}, count: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_refused_total", Help: "Connections and requests that a port turned away, by reason: full, peer (an address has its share), identity (who asks has), late (nothing was let in in time), handshake, unknown (no name, or a token that is not believed), forbidden, origin (of another site), host (a name that is not the port's).",
	}, []string{"port", "reason"})}
	metrics.MustRegister(r.count)
	return r
}

// of has all counts of a port be there from its beginning.
func (r *Refusals) of(port string) {
	if r == nil {
		return
	}
	for _, reason := range reasons {
		r.count.WithLabelValues(port, string(reason))
	}
}

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
		said = append(said, "err", fmt.Sprintf("%.500s", err)) // it quotes what was sent
	}
	r.log.Warn("turned away", said...)
}

// more tells how often a line was left out, until it is no more.
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

// Failed tells of a handshake, unless the other side only hung up.
func (c *Conn) Failed(err error) {
	if c != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
		c.Refused(Handshake, err)
	}
}

// ErrorLog is the log of a server of HTTP behind the door, which tells of a
// handshake that failed nowhere else.
func (d *Door) ErrorLog() *log.Logger { return log.New(httpErrors{d}, "", 0) }

type httpErrors struct{ of *Door }

func (h httpErrors) Write(text []byte) (int, error) {
	said := strings.TrimSpace(string(text))
	rest, ok := strings.CutPrefix(said, "http: TLS handshake error from ")
	from, why, cut := strings.Cut(rest, ": ")
	addr, err := net.ResolveTCPAddr("tcp", from) // of numbers
	switch {
	case !ok || !cut || err != nil:
		slog.Warn("serving HTTP", "err", said)
	case why == "EOF", strings.Contains(why, syscall.ECONNRESET.Error()), strings.Contains(why, net.ErrClosed.Error()):
	default:
		h.of.cfg.Told.tell(h.of.cfg.Port, peerOf(addr).String(), Handshake, errors.New(why))
	}
	return len(text), nil
}
