package display

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/backup"
)

// Teller tells how far a command is, on standard error: on a terminal a line
// that is redrawn, elsewhere a line now and then.
type Teller struct {
	*backup.Progress
	step atomic.Pointer[string]
	stop context.CancelFunc
	done chan struct{}
}

const (
	redraw    = 500 * time.Millisecond
	tellFirst = time.Second
	tellWait  = 5 * time.Second
)

// StartTeller begins to tell after a second. Close it in the end: a pipe whose last
// line is no longer true gets one more, unless it told of bytes, which a result follows.
func StartTeller(ctx context.Context, w io.Writer) *Teller {
	ctx, stop := context.WithCancel(ctx)
	t := &Teller{Progress: backup.NewProgress(0), stop: stop, done: make(chan struct{})}
	t.Say("")
	go func() {
		defer close(t.done)
		t.run(ctx, w, IsTerminal(w))
	}()
	return t
}

// Say names what is being done, and what of others it is done to, such as an object of a
// bucket: the line is drawn past what keeps a screen harmless.
func (t *Teller) Say(step string) {
	step = Printable(step)
	t.step.Store(&step)
}

// Close ends the telling.
func (t *Teller) Close() {
	t.stop()
	<-t.done
}

// said is how far a step had come.
type said struct {
	step        string
	done, total int64
}

func (t *Teller) now() said {
	s := t.Now()
	return said{*t.step.Load(), s.Done, s.Total}
}

// line is what is told at one moment.
func (t *Teller) line() string {
	line := *t.step.Load()
	if s := t.Now(); s.Done > 0 || s.Total > 0 {
		if line != "" {
			line += ": "
		}
		line += s.String()
	}
	return line
}

func (t *Teller) run(ctx context.Context, w io.Writer, terminal bool) {
	every, format := tellWait, "%s\n"
	if terminal {
		every, format = redraw, "\r\x1b[K%s"
		if s, ok := w.(Screen); ok {
			w = s.File
		}
		defer fmt.Fprint(w, "\r\x1b[K")
	}
	var told said
	tick := time.NewTicker(min(every, tellFirst))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if now := t.now(); told.step != "" && now.step != told.step && now.done+now.total == 0 && !terminal {
				fmt.Fprintf(w, format, t.line())
			}
			return
		case <-tick.C:
			tick.Reset(every)
			if line := t.line(); line != "" {
				told = t.now()
				fmt.Fprintf(w, format, line)
			}
		}
	}
}
