package secure

import "io"

// Bounded returns body with a limit: if it has more than most bytes, reading fails with
// the error long. It is for an answer that is kept in memory: the server may be an
// impostor, and its answer may never end.
func Bounded(body io.ReadCloser, most int, long error) io.ReadCloser {
	return &bounded{body, most, long}
}

type bounded struct {
	io.ReadCloser
	left int // how many bytes may still be read; below 0: there were more
	long error
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left+1)])
	if b.left -= n; b.left < 0 {
		return 0, b.long
	}
	return n, err
}
