package backup

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/internal/backup/objects"
)

// BenchmarkFiles moves a file of 64 MiB, beside copying and syncing it.
func BenchmarkFiles(b *testing.B) {
	data := randomBytes(64 << 20)
	from := writeFile(b, data)
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			copyFile(b, from, filepath.Join(b.TempDir(), "to"))
		}
	})
	for _, body := range benched(b) {
		bucket := impatient(body.objects)
		r := Ref{}
		b.Run("up/"+body.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				var err error
				if r, _, err = bucket.PutFile(b.Context(), from, nil, nil); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := body.objects.Remove(b.Context(), r.name()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
		if _, _, err := bucket.PutFile(b.Context(), from, nil, nil); err != nil {
			b.Fatal(err)
		}
		b.Run("down/"+body.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if err := bucket.GetFile(b.Context(), r, filepath.Join(b.TempDir(), "to")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type namedObjects struct {
	name    string
	objects objects.Store
}

func benched(b *testing.B) []namedObjects {
	all := []namedObjects{{"file", directory(b, b.TempDir())}}
	if os.Getenv("MILLRACE_S3") != "" {
		all = append(all, namedObjects{"s3", must(openURL(b, s3URL(b)))})
	}
	return all
}

func copyFile(b *testing.B, from, to string) {
	in, err := os.Open(from)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		b.Fatal(err)
	}
	if err := out.Sync(); err != nil {
		b.Fatal(err)
	}
}
