package load

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// counts are of the lines read so far. showProgress reads them while a load runs.
type counts struct{ lines, rejected atomic.Int64 }

// showProgress prints the progress of the load, as a bar on a terminal and else as a line
// a second, until stop is called. stop prints the final line.
func (l *loader) showProgress() (stop func()) {
	w := l.o.Progress
	every, end := time.Second, ""
	bar := isTerminal(w)
	if bar {
		every, end = 100*time.Millisecond, "\033[K" // this escape sequence clears the rest of the line, where a longer one stood
	}
	tick, done, finished := time.NewTicker(every), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		for {
			select {
			case <-tick.C:
				if bar {
					fmt.Fprint(w, l.progress(bar), end, "\r")
				} else {
					fmt.Fprintln(w, l.progress(bar))
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		tick.Stop()
		close(done)
		<-finished
		fmt.Fprint(w, l.progress(bar), end, "\n")
	}
}

// progress returns the line to print: the file's name, the bar, the part of the file that
// is read, the lines loaded, their rate, and the lines rejected.
func (l *loader) progress(bar bool) string {
	var b strings.Builder
	b.WriteString(filepath.Base(l.o.File))
	if l.in.size > 0 {
		part := min(float64(l.in.read.Load())/float64(l.in.size), 1)
		if bar {
			const width = 30
			full := int(part * width)
			fmt.Fprintf(&b, " [%s%s]", strings.Repeat("#", full), strings.Repeat(".", width-full))
		}
		fmt.Fprintf(&b, " %3.0f %%", 100*part)
	}
	loaded := l.to.Acknowledged()
	rate := float64(loaded) / max(time.Since(l.began).Seconds(), 1e-3)
	fmt.Fprintf(&b, "  %d loaded  %.0f/s", loaded, rate)
	if n := l.counts.rejected.Load(); n > 0 {
		fmt.Fprintf(&b, "  %d rejected", n)
	}
	return b.String()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
