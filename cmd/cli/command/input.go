package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// Input returns a reader of in that fails once the context ends, even while in waits for
// somebody to type or for another program. It may take more from in than its caller reads.
func Input(ctx context.Context, in io.Reader) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.Copy(w, in)
		w.CloseWithError(err) // nil: the end
	}()
	return r
}

// EachLine calls use for each line of in that is not empty, with its number from 1 and
// without spaces at its ends, until the context ends. The line is valid until use
// returns. A line must have fewer than most bytes. Errors name the file and the line; the
// error of the context is returned as it is.
func EachLine(ctx context.Context, in io.Reader, name string, most int, use func(n int, line []byte) error) error {
	lines := bufio.NewScanner(Input(ctx, in))
	lines.Buffer(nil, most)
	n := 0
	for lines.Scan() {
		n++
		if err := ctx.Err(); err != nil {
			return err
		}
		line := bytes.TrimSpace(lines.Bytes())
		if n == 1 && bytes.HasPrefix(line, []byte("\xef\xbb\xbf")) {
			return fmt.Errorf("%s:1: it begins with a byte order mark; save the file as UTF-8 without one", name)
		}
		if len(line) == 0 {
			continue
		}
		if err := use(n, line); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s:%d: a line of more than %d bytes; write one for each record", name, n+1, most)
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	return ctx.Err()
}
