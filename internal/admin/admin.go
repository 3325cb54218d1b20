// Package admin serves what operators and their machines ask of a process:
// liveness, readiness, metrics and profiles, on a port of its own.
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

// Noted is an error of ready that says something of a process which is ready.
type Noted struct{ What error }

// Error implements error.
func (n Noted) Error() string { return n.What.Error() }

// Handler serves /livez, /readyz, /metrics, /log and /debug/pprof. Ready returns
// nil, or a [Noted], when the process can do its work, or why it cannot yet; log
// shows and changes what is logged.
func Handler(metrics prometheus.Gatherer, ready func() error, log http.Handler) http.Handler {
	mux := http.NewServeMux()
	for path, h := range routes(metrics, ready, log) {
		mux.Handle(path, h)
	}
	return http.MaxBytesHandler(mux, maxBodyBytes)
}

// routes is everything that is served. Who may ask for it, the package permit
// says.
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

// FileFaults counts the files of the process that cannot be used.
func FileFaults() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_file_faults", Help: "Keys of the configuration whose files of certificates, passwords or tokens have changed and cannot be used: what they held before stays, and the log names them.",
	}, func() float64 { return float64(len(secure.Faults())) })
}

// maxBodyBytes is more than any tool sends: the symbols of a profile, which the
// handler of /debug/pprof/symbol answers from memory.
const maxBodyBytes = 64 << 10

const (
	// maxStreams is how many requests a connection of HTTP/2 has at a time.
	maxStreams = 16
	// readWithin is how long a client may take to read an answer, with the time that
	// it takes to make it. A profile takes the time that was asked for besides,
	// maxProfile at most.
	readWithin = 30 * time.Second
	maxProfile = time.Hour
)

// Serve serves h on l as [ServeBy] does. Slow clients are cut off: headers
// within 5 s, bodies within 10, and answers that are not read within 30.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return ServeBy(ctx, l, server(h, readWithin), 2*time.Second)
}

func server(h http.Handler, within time.Duration) *http.Server {
	return &http.Server{
		Handler: readBy(h, within), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, WriteByteTimeout: within},
	}
}

// readBy cuts a client off that has not read its answer in time, by each request's own
// time. The server's WriteTimeout is not used: no profile could take longer.
func readBy(h http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Writers that know no deadline, such as those of tests, have no client to wait for.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(within + profileTime(r)))
		h.ServeHTTP(w, r)
	})
}

// profileTime is how long a profile or a trace is recorded that a request asks for.
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

// ServeBy has s serve on l until ctx is done, and then lets requests under way
// finish for some time at most, for which it waits. Where l is a door, it is told of
// what fails.
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
		if !stop() { // Serve ends when the others begin to finish
			<-finished
		}
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
