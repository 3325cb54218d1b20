package logs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/rpcerr"
)

// Handler returns a handler that shows the levels (GET) and changes one (POST). POST has the
// parameters package, level and for, such as ?package=broker&level=DEBUG&for=10m; without for
// a change lasts an hour. Each change is written to acts before it is made; if acts is nil, it
// is in the log of the process alone.
func (l *Levels) Handler(acts *audit.Log) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if err := l.change(r, acts); err != nil {
				rpcerr.WriteProblem(w, err)
				return
			}
		} else if r.Method != http.MethodGet {
			w.Header().Set("Allow", "GET, POST")
			http.Error(w, "GET shows the levels, POST changes one", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(l.All()) // an error means that the caller has gone
	})
}

func (l *Levels) change(r *http.Request, acts *audit.Log) error {
	invalid := func(field, detail, wayOut string) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut}
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(r.FormValue("level"))); err != nil {
		return invalid("level", fmt.Sprintf("%.40q is no level", r.FormValue("level")), "write DEBUG, INFO, WARN or ERROR")
	}
	lasts := defaultChange
	if text := r.FormValue("for"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			return invalid("for", fmt.Sprintf("%.40q is no time", text), "write one such as 10m")
		}
	}
	name := r.FormValue("package")
	if err := checkChange(name, lasts); err != nil {
		return err
	}
	before := l.now().levelOf(name).String()
	act := audit.Entry{Who: cmp.Or(permit.Who(r.Context()).Name, "anybody"), Act: "log level", On: fmt.Sprintf("package %.100q", name), Before: before, After: fmt.Sprintf("%s for %s", level, lasts)}
	if err := acts.Write(act); err != nil {
		return err
	}
	if _, err := l.Set(name, level, lasts); err != nil {
		act.After, act.Fault = act.Before, err.Error()
		return errors.Join(err, acts.Write(act))
	}
	return nil
}
