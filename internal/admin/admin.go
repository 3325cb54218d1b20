// Package admin serves what operators and their machines ask of a process:
// liveness, readiness, metrics and profiles, on a port of its own.
package admin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
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
		"GET /metrics":         promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}),
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

// Serve serves h on l as [ServeBy] does. Slow clients are cut off: headers
// within 5 s, bodies within 10.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return ServeBy(ctx, l, &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}, 2*time.Second)
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
