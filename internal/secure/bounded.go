package secure

import "io"

// Bounded is a body of which most bytes are read; then reading fails. Who answers may be
// anybody, and what keeps an answer keeps all that comes.
func Bounded(body io.ReadCloser, most int, long error) io.ReadCloser {
	return &bounded{body, most, long}
}

type bounded struct {
	io.ReadCloser
	left int
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
