package display

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/backup"
)

// Teller tells how far a command is: on a terminal by a line that is redrawn, elsewhere by
// a line now and then. Its [backup.Progress] counts bytes.
type Teller struct {
	*backup.Progress
	step atomic.Pointer[string]
	stop context.CancelFunc
	done chan struct{}
}

const (
	redraw    = 500 * time.Millisecond // between two lines on a terminal
	tellFirst = time.Second            // until the first line elsewhere
	tellWait  = 5 * time.Second        // between two lines elsewhere
)

// StartTeller returns a Teller that writes to w: on a terminal every half second,
// elsewhere after a second and then every five. Close it at the end. If w is no terminal,
// a line was written, and the step has changed since, Close writes one more, unless the
// lines count bytes: the command then tells its result.
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

// Say names the step that is being done. The step may have a name that others chose, such
// as that of an object in a bucket: Say makes it printable, because the line does not
// pass [Screen.Write], which would.
func (t *Teller) Say(step string) {
	step = Printable(step)
	t.step.Store(&step)
}

// Close ends the telling, and waits until the last line is written.
func (t *Teller) Close() {
	t.stop()
	<-t.done
}

// said is how far a step had come when a line was written.
type said struct {
	step        string
	done, total int64
}

func (t *Teller) now() said {
	s := t.Now()
	return said{*t.step.Load(), s.Done, s.Total}
}

// line returns what there is to tell now; "" if nothing.
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
