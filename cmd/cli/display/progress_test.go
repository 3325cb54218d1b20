package display

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// What takes long says how far it is: a pipe gets a line after a second and then
// every five, a terminal one line that is drawn anew.
func TestTeller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pipe bytes.Buffer
		told := StartTeller(t.Context(), &pipe)
		told.Expect(3 << 20)
		told.Say("restoring \x1b[2J")
		time.Sleep(12 * time.Second)
		told.Close()
		if got, want := pipe.String(), "restoring \\u001b[2J: 0 B of 3.0 MiB\n"; got != want+want+want {
			t.Errorf("a pipe got %q", got)
		}
		pipe.Reset()
		read := StartTeller(t.Context(), &pipe)
		read.Say("18 %")
		time.Sleep(2 * time.Second)
		read.Say("100 %")
		read.Close()
		if got := pipe.String(); got != "18 %\n100 %\n" {
			t.Errorf("a pipe got %q in the end", got)
		}
		var screen bytes.Buffer
		ctx, stop := context.WithTimeout(t.Context(), 1200*time.Millisecond)
		defer stop()
		told.run(ctx, &screen, true)
		const clear = "\r\x1b[K"
		if got, want := screen.String(), clear+"restoring \\u001b[2J: 0 B of 3.0 MiB"; got != want+want+clear {
			t.Errorf("a terminal got %q", got)
		}
	})
}
