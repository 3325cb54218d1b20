package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace/internal/backup/objects"
)

// Hash is the SHA-256 of a file's bytes. A file is named by it in a bucket.
type Hash [sha256.Size]byte

// String returns the hash as it names a file: 64 hexadecimal digits in lower case.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText implements encoding.TextMarshaler.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It takes only what String returns, so
// that a hash is never a path, and has one spelling.
func (h *Hash) UnmarshalText(b []byte) error {
	n := 0
	var err error
	if len(b) == hex.EncodedLen(len(h)) {
		n, err = hex.Decode(h[:], b)
	}
	if n != len(h) || err != nil || h.String() != string(b) {
		return fmt.Errorf("backup: %.80q is no SHA-256 of 64 hexadecimal digits", b)
	}
	return nil
}

// Ref names a file in a bucket by its hash and size. The zero Ref names none.
type Ref struct {
	SHA256 Hash  `json:"sha256"`
	Size   int64 `json:"size"`
}

// IsZero reports whether the Ref names nothing.
func (r Ref) IsZero() bool { return r == Ref{} }

// filesPrefix is what the names of files in a bucket begin with.
const filesPrefix = "files/"

// name returns the name of the file's object.
func (r Ref) name() string {
	s := r.SHA256.String()
	return filesPrefix + s[:2] + "/" + s
}

// fileOf is the reverse of Ref.name. ok is false for the name of no file.
func fileOf(name string) (h Hash, ok bool) {
	if len(name) < hex.EncodedLen(len(h)) || h.UnmarshalText([]byte(name[len(name)-hex.EncodedLen(len(h)):])) != nil {
		return h, false
	}
	return h, Ref{SHA256: h}.name() == name
}

// Known are files that an upload takes to be in the bucket without a look, since a manifest
// that expiry keeps names them.
type Known map[Ref]bool

// PutFile uploads a file, unless known names it or the bucket has it already. It reports
// whether it uploaded the file. If hashes has the file's hash, the file is not read to
// compute it; hashes may be nil.
func (b *Bucket) PutFile(ctx context.Context, path string, known Known, hashes *Hashes) (r Ref, uploaded bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, false, fmt.Errorf("backup: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return r, false, fmt.Errorf("backup: %w", err)
	}
	id, ok := idOf(info)
	if hashes == nil || !ok {
		hashes, id = new(Hashes), fileID{}
	}
	if r, ok = hashes.get(id); !ok {
		if r, err = b.hash(ctx, f); err != nil {
			return r, false, err
		}
		hashes.set(id, r)
	}
	uploaded, err = b.upload(ctx, r, f, known)
	if errors.Is(err, objects.ErrChanged) {
		hashes.forget(id)
	}
	return r, uploaded, err
}

// Put uploads bytes as [Bucket.PutFile] uploads a file.
func (b *Bucket) Put(ctx context.Context, data []byte, known Known) (r Ref, uploaded bool, err error) {
	r = Ref{SHA256: sha256.Sum256(data), Size: int64(len(data))}
	uploaded, err = b.upload(ctx, r, bytes.NewReader(data), known)
	return r, uploaded, err
}

// upload uploads data as the file r, unless known names it or the bucket has it already. The
// error is objects.ErrChanged if data is not what r says.
func (b *Bucket) upload(ctx context.Context, r Ref, data io.ReadSeeker, known Known) (uploaded bool, err error) {
	if known[r] {
		b.progress.add(r.Size)
		return false, nil
	}
	o, err := b.objects.Stat(ctx, r.name())
	switch {
	case err == nil && o.Size == r.Size:
		b.progress.add(r.Size)
		return false, nil
	case err != nil && !objects.IsMissing(err):
		return false, err
	}
	// An object with another size is damaged. It is replaced.
	in := &reader{ctx: ctx, b: b, from: data, sum: sha256.New(), want: &r}
	if err := b.objects.Write(ctx, r.name(), in, false); err != nil {
		return false, err
	}
	// It may be missing already, since an expiry that condemned the name before removes
	// it. That is no error here: WriteManifest looks again.
	if err := b.look(ctx, r); err != nil && !objects.IsMissing(err) {
		return false, err
	}
	return true, nil
}

// look returns a Damage unless the bucket has the file, with its size.
func (b *Bucket) look(ctx context.Context, r Ref) error {
	o, err := b.objects.Stat(ctx, r.name())
	switch {
	case objects.IsMissing(err):
		return &Damage{Object: r.name(), Kind: Missing, Detail: "it isn't there"}
	case errors.Is(err, objects.ErrOdd):
		return &Damage{Object: r.name(), Kind: Link, Detail: err.Error()}
	case err != nil:
		return err
	case o.Size != r.Size:
		return wrongSize(r, o.Size)
	}
	return nil
}

func wrongSize(r Ref, got int64) *Damage {
	return &Damage{Object: r.name(), Kind: WrongSize, Detail: fmt.Sprintf("it has %d bytes, and not %d", got, r.Size)}
}

// reader reads from another reader as fast as the bucket's bound allows. It counts and
// hashes the bytes.
type reader struct {
	ctx  context.Context
	b    *Bucket
	from io.Reader // an io.Seeker too, if Seek is called
	sum  hash.Hash // nil: the caller hashes, and does not call Seek
	n    int64     // bytes read
	want *Ref      // what the bytes must be at their end, else ErrChanged; nil: the caller checks
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p[:min(len(p), objects.Chunk)])
	if r.sum != nil {
		r.sum.Write(p[:n])
	}
	r.n += int64(n)
	if n > 0 {
		if waited := r.b.wait(r.ctx, n); waited != nil {
			return n, waited
		}
		r.b.progress.add(int64(n))
	}
	if err == io.EOF && r.want != nil && (Ref{Hash(r.sum.Sum(nil)), r.n}) != *r.want {
		return n, objects.ErrChanged
	}
	return n, err
}

// Seek goes back to the start, for another try. It can do nothing else.
func (r *reader) Seek(offset int64, whence int) (int64, error) {
	if offset != 0 || whence != io.SeekStart {
		return 0, errors.ErrUnsupported
	}
	if _, err := r.from.(io.Seeker).Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	r.b.progress.add(-r.n)
	r.sum.Reset()
	r.n = 0
	return 0, nil
}

// wait waits until n bytes more may move, or ctx ends.
func (b *Bucket) wait(ctx context.Context, n int) error {
	if b.limit == nil || b.limit.Limit() == rate.Inf {
		return ctx.Err()
	}
	return b.limit.WaitN(ctx, n)
}

// PartSuffix ends the name of a file that is not yet downloaded whole.
const PartSuffix = ".part"

// GetFile downloads to path what PutFile uploaded. It writes path+PartSuffix, continues
// one that an earlier download left, and renames it to path when it has the size and hash
// of r. If it does not have them in the end, the error is a [Damage]. GetFile downloads
// nothing if path has the whole file already. It does not sync the file: after a crash,
// call it again, and it checks the file.
func (b *Bucket) GetFile(ctx context.Context, r Ref, path string) error {
	if is, err := refOf(path); err == nil && is == r {
		b.progress.add(r.Size)
		return nil
	}
	if err := b.startGet(ctx); err != nil {
		return err
	}
	defer b.endGet()
	part := path + PartSuffix
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	resumed, err := b.download(ctx, r, f)
	var damage *Damage
	if resumed && errors.As(err, &damage) && damage.Kind == WrongBytes {
		// What the earlier download left may be wrong, and not the object.
		b.progress.add(-r.Size)
		if err = f.Truncate(0); err == nil {
			_, err = b.download(ctx, r, f)
		}
	}
	err = errors.Join(err, f.Close())
	switch {
	case err == nil:
		return os.Rename(part, path)
	case errors.As(err, &damage):
		return errors.Join(err, os.Remove(part))
	}
	return err
}

// downloads is how many files are downloaded from a bucket at a time, over all goroutines.
// It bounds connections and memory, however many partitions are restored at once.
const downloads = 32

// startGet waits until there is room for another download.
func (b *Bucket) startGet(ctx context.Context) error {
	select {
	case b.gets <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endGet ends a download that startGet let begin.
func (b *Bucket) endGet() { <-b.gets }

// refOf reads a file and returns its size and hash.
func refOf(path string) (r Ref, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	sum := sha256.New()
	r.Size, err = io.CopyBuffer(sum, struct{ io.Reader }{f}, make([]byte, objects.Chunk))
	sum.Sum(r.SHA256[:0])
	return r, err
}

// download appends to f the bytes that it lacks of the file r. resumed reports whether f
// had some already.
func (b *Bucket) download(ctx context.Context, r Ref, f *os.File) (resumed bool, err error) {
	sum := sha256.New()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	buf := chunks.Get().(*[objects.Chunk]byte)
	have, err := io.CopyBuffer(sum, struct{ io.Reader }{f}, buf[:])
	chunks.Put(buf)
	if err != nil {
		return false, err
	}
	if have > r.Size {
		if err := f.Truncate(0); err != nil {
			return false, err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return false, err
		}
		have = 0
		sum.Reset()
	}
	b.progress.add(have)
	return have > 0, b.fetch(ctx, r, have, sum, f)
}

// Get reads a file that [Bucket.Put] or [Bucket.PutFile] uploaded. If r says that it has
// more than most bytes, the error is a [Damage], and nothing is read.
func (b *Bucket) Get(ctx context.Context, r Ref, most int64) ([]byte, error) {
	if r.Size < 0 || r.Size > most {
		return nil, &Damage{Object: r.name(), Kind: WrongSize, Detail: fmt.Sprintf("it is named with %d bytes; at most %d are read", r.Size, most)}
	}
	if err := b.startGet(ctx); err != nil {
		return nil, err
	}
	defer b.endGet()
	var out bytes.Buffer
	out.Grow(int(min(r.Size, 16*objects.Chunk)))
	if err := b.fetch(ctx, r, 0, sha256.New(), &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// fetch writes a file's bytes from the offset have to w, and compares the size and hash of
// the whole file. sum has hashed the bytes before have. If the connection breaks, it opens
// another and continues where it broke. If no bytes are left, it does not ask the bucket,
// since S3 refuses a read from the end.
func (b *Bucket) fetch(ctx context.Context, r Ref, have int64, sum hash.Hash, w io.Writer) error {
	for broken := 0; ; broken++ {
		if have > 0 && have >= r.Size {
			return compare(r, have, sum)
		}
		from, o, err := b.objects.Open(ctx, r.name(), have)
		switch {
		case objects.IsMissing(err):
			return &Damage{Object: r.name(), Kind: Missing, Detail: "it isn't there"}
		case errors.Is(err, objects.ErrOdd):
			return &Damage{Object: r.name(), Kind: Link, Detail: err.Error()}
		case err != nil:
			return err
		case o.Size != r.Size:
			return errors.Join(wrongSize(r, o.Size), from.Close())
		}
		in := &reader{ctx: ctx, b: b, from: io.LimitReader(from, r.Size-have+1)}
		out := &writer{w: w}
		err = pump(out, in, sum)
		_ = from.Close() // either all was read, or err says why not
		have += in.n
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("backup: read %s: %w", r.name(), ctx.Err())
		case out.err != nil:
			return fmt.Errorf("backup: write %s: %w", r.name(), out.err)
		case err != nil && broken < objects.Tries && !objects.IsFinal(err):
			b.log.Warn("a download broke off; going on", "object", r.name(), "at", have, "error", err)
			continue
		case err != nil:
			return fmt.Errorf("backup: read %s: %w", r.name(), err)
		}
		return compare(r, have, sum)
	}
}

// compare returns a Damage unless have bytes with the hash sum are the file r.
func compare(r Ref, have int64, sum hash.Hash) error {
	switch {
	case have != r.Size:
		return wrongSize(r, have)
	case Hash(sum.Sum(nil)) != r.SHA256:
		return &Damage{Object: r.name(), Kind: WrongBytes, Detail: "its bytes have another SHA-256 than its name"}
	}
	return nil
}

// chunks are buffers for pump.
var chunks = sync.Pool{New: func() any { return new([objects.Chunk]byte) }}

// pump copies from in to w, and hashes the bytes into sum. It hashes one chunk while it
// reads and writes the next, since hashing takes about as long as both.
func pump(w io.Writer, in io.Reader, sum hash.Hash) error {
	full, free := make(chan []byte), make(chan []byte, 2)
	for range cap(free) {
		b := chunks.Get().(*[objects.Chunk]byte)
		defer chunks.Put(b)
		free <- b[:]
	}
	hashed := make(chan struct{})
	go func() {
		defer close(hashed)
		for b := range full {
			sum.Write(b)
			free <- b[:objects.Chunk]
		}
	}()
	defer func() {
		close(full)
		<-hashed
	}()
	for {
		b := <-free
		n, err := in.Read(b)
		if _, failed := w.Write(b[:n]); failed != nil {
			return failed
		}
		full <- b[:n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// writer remembers the error of the last write to w. It tells a failed write, for which
// another read from the bucket does not help, from a failed read.
type writer struct {
	w   io.Writer
	err error
}

func (w *writer) Write(p []byte) (n int, err error) {
	n, err = w.w.Write(p)
	w.err = err
	return n, err
}
