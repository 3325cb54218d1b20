package backup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/backup/objects"
)

// A file that hashes knows is not read to tell what it is. Where it must be
// read, for an upload, and is something else, it fails once and is read anew.
func TestHashesSpareReading(t *testing.T) {
	b, ctx := newBucket(directory(t, t.TempDir()), Options{}), t.Context()
	path := filepath.Join(t.TempDir(), "1.sst")
	write := func(text string) {
		at := time.Unix(1e9, 0)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	var h Hashes
	write("one")
	one, uploaded, err := b.PutFile(ctx, path, nil, &h)
	if err != nil || !uploaded || h.Len() != 1 {
		t.Fatalf("uploaded %v, %d known: %v", uploaded, h.Len(), err)
	}
	write("two") // as no table is
	if r, uploaded, err := b.PutFile(ctx, path, Known{one: true}, &h); err != nil || uploaded || r != one {
		t.Errorf("it was read again: %v, %v", r, err)
	}
	if r, _, err := b.PutFile(ctx, path, nil, nil); err != nil || r == one {
		t.Errorf("without hashes it is %v, as before: %v", r, err)
	}
	if err := b.objects.Remove(ctx, one.name()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.PutFile(ctx, path, nil, &h); !errors.Is(err, objects.ErrChanged) {
		t.Errorf("other bytes went under a name: %v", err)
	}
	if r, _, err := b.PutFile(ctx, path, nil, &h); err != nil || r == one {
		t.Errorf("the next time it is %v, as before: %v", r, err)
	}
	for want := range 2 {
		h.NewRound()
		if n := h.Len(); n != 1-want {
			t.Errorf("after %d rounds without it %d are known", want+1, n)
		}
	}
}
