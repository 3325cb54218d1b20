package command

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
)

// What waits for input, or is in the midst of it, ends with the context.
func TestLinesEndWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		in, typed := io.Pipe() // which nobody closes: a terminal
		defer typed.Close()
		ended := make(chan error)
		go func() {
			ended <- EachLine(ctx, in, "standard input", 100, func(int, []byte) error { return nil })
		}()
		if _, err := io.WriteString(typed, "a line\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := EachLine(ctx, strings.NewReader(strings.Repeat("a line\n", 1000)), "file", 100, func(at int, _ []byte) error {
		if n = at; n == 10 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || n != 10 {
		t.Errorf("after %d lines: %v", n, err)
	}
}

// What is wrong with lines is told in words, with the bound.
func TestLinesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"a\n" + strings.Repeat("x", 101): "file:2: a line of more than 100 bytes; write one for each record",
		"\xef\xbb\xbfa\n":                "file:1: it begins with a byte order mark; save the file as UTF-8 without one",
		"a\n\n b\n":                      "file:3: b",
		"a\na\n":                         "<nil>",
	} {
		err := EachLine(t.Context(), strings.NewReader(text), "file", 100, func(_ int, line []byte) error {
			if string(line) == "b" {
				return errors.New("b")
			}
			return nil
		})
		if got := "<nil>"; err != nil && err.Error() != want || err == nil && want != got {
			t.Errorf("%q: %v", text, err)
		}
	}
}
