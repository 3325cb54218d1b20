// Package admin serves what operators and monitoring ask of a process, on a port of its
// own: liveness, readiness, metrics, log levels and profiles.
package admin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/secure"
)

// Noted is an error that ready may return for a process that is ready: /readyz then
// answers 200 with its text.
type Noted struct{ What error }

// Error implements error.
func (n Noted) Error() string { return n.What.Error() }

// Handler serves /livez, /readyz, /metrics, /log and /debug/pprof. ready returns nil or a
// [Noted] if the process can do its work, or else why it cannot yet. log shows and
// changes what is logged.
func Handler(metrics prometheus.Gatherer, ready func() error, log http.Handler) http.Handler {
	mux := http.NewServeMux()
	for path, h := range routes(metrics, ready, log) {
		mux.Handle(path, h)
	}
	return http.MaxBytesHandler(mux, maxBodyBytes)
}

// routes returns everything that is served, by pattern. The package permit says who may
// ask for it.
func routes(metrics prometheus.Gatherer, ready func() error, log http.Handler) map[string]http.Handler {
	return map[string]http.Handler{
		"GET /livez": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte("ok\n"))
		}),
		"GET /readyz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			err := ready()
			if note, ok := errors.AsType[Noted](err); ok {
				w.Write([]byte(note.Error() + "\n"))
				return
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			w.Write([]byte("ok\n"))
		}),
		"GET /metrics":         newScrapes(promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})),
		"/log":                 log,
		"/debug/pprof/":        http.HandlerFunc(pprof.Index),
		"/debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline),
		"/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"/debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
	}
}

// FileFaults returns a metric: how many files of certificates, passwords and tokens have
// changed and cannot be used.
func FileFaults() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_file_faults", Help: "Keys of the configuration whose files of certificates, passwords or tokens have changed and cannot be used: what they held before stays, and the log names them.",
	}, func() float64 { return float64(len(secure.Faults())) })
}

// maxBodyBytes bounds the body of a request. It is more than any tool sends: the most are
// the addresses that go to /debug/pprof/symbol.
const maxBodyBytes = 64 << 10

const (
	// maxStreams is how many requests a connection of HTTP/2 has at a time.
	maxStreams = 16
	// readWithin is how long a client may take to read an answer, including the time to
	// make it. A profile may take the time that was asked for on top, up to maxProfile.
	readWithin = 30 * time.Second
	maxProfile = time.Hour
)

// Serve serves h on l as [ServeBy] does. It cuts off slow clients: those that do not send
// the headers within 5 s and the whole request within 10 s, or do not read the answer
// within 30 s. Once ctx is done, requests in flight have 2 s to end.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return ServeBy(ctx, l, server(h, readWithin), 2*time.Second)
}

func server(h http.Handler, within time.Duration) *http.Server {
	return &http.Server{
		Handler: readBy(h, within), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, WriteByteTimeout: within},
	}
}

// readBy cuts off a client that has not read its answer in time. The time depends on the
// request, so that a profile may take longer; the server's WriteTimeout is one for all.
func readBy(h http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Writers that know no deadline, such as those of tests, have no client to wait for.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(within + profileTime(r)))
		h.ServeHTTP(w, r)
	})
}

// profileTime returns how long the profile or trace takes that a request asks for, at most
// maxProfile. It returns 30 s for a request below /debug/pprof/ that names no time, and 0
// for any other request.
func profileTime(r *http.Request) time.Duration {
	if !strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
		return 0
	}
	seconds, err := strconv.ParseFloat(r.URL.Query().Get("seconds"), 64)
	if err != nil || !(seconds > 0) {
		return 30 * time.Second // as net/http/pprof has it
	}
	return time.Duration(min(seconds, maxProfile.Seconds()) * float64(time.Second))
}

// ServeBy has s serve on l until ctx is done. It then lets requests in flight go on for
// up to finish, and returns nil once they have ended or were cut off. If s fails before,
// it returns the error. If l is a [door.Door], which guards a listener, the server's
// errors go to the door's log.
func ServeBy(ctx context.Context, l net.Listener, s *http.Server, finish time.Duration) error {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return door.With(ctx, door.Of(c)) }
	if d, ok := l.(*door.Door); ok {
		s.ErrorLog = d.ErrorLog()
	}
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(finished)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), finish)
		defer cancel()
		if s.Shutdown(grace) != nil {
			s.Close()
		}
	})
	defer func() {
		if !stop() { // s.Serve returns when Shutdown begins; wait until Shutdown has ended
			<-finished
		}
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
