// Package modelpack keeps models as packs. A pack is a directory or an archive with
// a spec, the files that it names, and golden rows: examples that say what the model should
// give. A manifest with checksums seals it. The package opens packs, admits a model that
// gives what its golden rows say, and tells how two versions differ.
package modelpack

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/trees"
)

// The files of a pack that have a fixed name. The spec may name more.
const (
	ManifestFile = "manifest.json"
	SpecFile     = "spec.yaml"
	GoldenFile   = "golden.ndjson"
	CardFile     = "card.md"
)

// The bounds of a pack. The size that a header gives is checked against them before a file
// is unpacked.
const (
	maxPackBytes     = relevance.MaxFileBytes // of all files together
	maxPackFiles     = 64
	maxManifestBytes = 1 << 20
	maxCardBytes     = 1 << 20
	maxWindowBytes   = 8 << 20 // of the compression
	packFormat       = 2       // in format 1, golden rows have no records
)

// Manifest says what a pack holds. It is written last.
type Manifest struct {
	Format   int                     `json:"format"` // 2
	Name     string                  `json:"name"`
	Version  string                  `json:"version"`
	Schemas  map[string]string       `json:"schemas,omitempty"` // by name, the fingerprints of the schemas that the spec was checked against, with spaces between, in the order of admission
	Features []relevance.FeatureType `json:"features"`          // in the order of the spec
	Files    map[string]string       `json:"files"`             // SHA-256 of every other file, in hex, by name
}

// Pack is an opened model pack: its files are those of the manifest, and have the
// manifest's checksums. [Validate] says whether the model is fit to serve.
type Pack struct {
	Manifest Manifest
	Card     string            // the text of CardFile
	Checksum string            // SHA-256 of the manifest, in hex; it covers all files, since the manifest has their checksums
	files    map[string][]byte // by name, with the manifest

	tar struct {
		once  sync.Once
		bytes []byte
		err   error
	}
}

// Open reads a pack from a directory or a .tar.zst file. It refuses anything that
// is not a plain file, files that the manifest does not list, and files with another
// checksum.
func Open(path string) (*Pack, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("relevance: open pack: %w", err)
	}
	var files map[string][]byte
	if info.IsDir() {
		files, err = readDir(path)
	} else {
		files, err = readTar(path)
	}
	if err != nil {
		return nil, fmt.Errorf("relevance: open pack %s: %w", filepath.Base(path), err)
	}
	p, err := newPack(files)
	if err != nil {
		return nil, fmt.Errorf("relevance: open pack %s: %w", filepath.Base(path), err)
	}
	return p, nil
}

// Read reads a pack from a .tar.zst stream, as [Open] does from a file.
func Read(r io.Reader) (*Pack, error) {
	files, err := untar(r)
	if err != nil {
		return nil, fmt.Errorf("relevance: read pack: %w", err)
	}
	p, err := newPack(files)
	if err != nil {
		return nil, fmt.Errorf("relevance: read pack: %w", err)
	}
	return p, nil
}

func newPack(files map[string][]byte) (*Pack, error) {
	m, ok := files[ManifestFile]
	if !ok {
		return nil, errors.New("it has no " + ManifestFile)
	}
	p := &Pack{files: files, Checksum: checksum(m)}
	d := json.NewDecoder(bytes.NewReader(m))
	d.DisallowUnknownFields()
	if err := d.Decode(&p.Manifest); err != nil {
		return nil, fmt.Errorf("%s: %w", ManifestFile, err)
	}
	switch f := p.Manifest.Format; {
	case f == 1:
		return nil, fmt.Errorf("%s: format 1, whose golden rows test no expressions; add rows with a record (millrace model golden writes them out) and seal it again", ManifestFile)
	case f != packFormat:
		return nil, fmt.Errorf("%s: format %d; this binary reads %d", ManifestFile, f, packFormat)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p.Manifest.Files)) {
		f, ok := files[name]
		if !ok {
			errs = append(errs, fmt.Errorf("%s is listed and not there", name))
		} else if sum := checksum(f); sum != p.Manifest.Files[name] {
			errs = append(errs, fmt.Errorf("%s has the checksum %s, and the manifest says %s", name, sum, p.Manifest.Files[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, ok := p.Manifest.Files[name]; !ok && name != ManifestFile {
			errs = append(errs, fmt.Errorf("%s is there and not listed", name))
		}
	}
	for _, name := range []string{SpecFile, GoldenFile, CardFile} {
		if _, ok := files[name]; !ok {
			errs = append(errs, fmt.Errorf("it has no %s", name))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p.Card = string(files[CardFile])
	return p, nil
}

func checksum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// packFiles collects files within the bounds of a pack.
type packFiles struct {
	files map[string][]byte
	bytes int64
}

func (f *packFiles) add(name string, size int64, r io.Reader) error {
	if strings.ContainsAny(name, `/\`) || !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("%q is not the name of a file of a pack", name)
	}
	if _, twice := f.files[name]; twice {
		return fmt.Errorf("%s stands twice", name)
	}
	if len(f.files) == maxPackFiles {
		return fmt.Errorf("more than %d files", maxPackFiles)
	}
	most := int64(maxPackBytes)
	if own, ok := fileBounds[name]; ok {
		most = own
	}
	if size < 0 || size > most {
		wayOut := ""
		if name == GoldenFile {
			wayOut = fmt.Sprintf("; keep fewer rows, of all kinds of records: %d at most", maxGoldenRows)
		}
		return fmt.Errorf("%s has %d bytes, more than %d%s", name, size, most, wayOut)
	}
	if f.bytes += size; f.bytes > maxPackBytes {
		return fmt.Errorf("more than %d bytes", maxPackBytes)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f.files[name] = data
	return nil
}

// fileBounds are the bounds in bytes of single files. Other files may have maxPackBytes.
var fileBounds = map[string]int64{ManifestFile: maxManifestBytes, SpecFile: document.MaxBytes, GoldenFile: maxGoldenBytes, CardFile: maxCardBytes}

func readDir(dir string) (map[string][]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	out := packFiles{files: map[string][]byte{}}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			return nil, fmt.Errorf("%s is not a plain file", e.Name())
		}
		f, err := root.Open(e.Name())
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err == nil {
			err = out.add(e.Name(), info.Size(), f)
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return out.files, nil
}

func readTar(path string) (map[string][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	start := make([]byte, len(zstdMagic))
	if _, err := io.ReadFull(f, start); err != nil || string(start) != zstdMagic {
		return nil, notPack(io.MultiReader(bytes.NewReader(start), f))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return untar(f)
}

// zstdMagic is the beginning of every file that zstd has compressed.
const zstdMagic = "\x28\xb5\x2f\xfd"

// notPack returns an error for a file that is no pack. It looks whether it is the model file
// of a training library, since users often pass that.
func notPack(r io.Reader) error {
	src, err := io.ReadAll(io.LimitReader(r, maxPackBytes))
	if err != nil {
		return err
	}
	_, err = trees.Import(src)
	switch {
	case err == nil:
		return errors.New("it is a model file and no pack: name it in a spec.yaml beside it, under trees: as model:, and validate the spec")
	case bytes.HasPrefix(src, []byte("tree")), bytes.HasPrefix(src, []byte("{")), bytes.HasPrefix(src, []byte("[")):
		return fmt.Errorf("it is no pack, and as a model file not of use: %w", err)
	}
	return errors.New("it is neither a directory nor a .tar.zst")
}

func untar(r io.Reader) (map[string][]byte, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindowBytes))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	out := packFiles{files: map[string][]byte{}}
	all := &io.LimitedReader{R: z, N: maxPackBytes + 1<<20}
	t := tar.NewReader(all)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return out.files, ended(all)
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%q is not a plain file", h.Name)
		}
		if err := out.add(strings.TrimPrefix(h.Name, "./"), h.Size, t); err != nil {
			return nil, err
		}
	}
}

// ended reads what follows the end of an archive, and refuses anything but the zeros that
// fill it up. Other bytes would be stored and sent to every node, and nothing checks them.
func ended(r *io.LimitedReader) error {
	rest := make([]byte, 4<<10)
	for {
		n, err := r.Read(rest)
		if len(bytes.Trim(rest[:n], "\x00")) > 0 {
			return errors.New("something follows the end of its archive")
		}
		switch {
		case err == io.EOF && r.N == 0:
			return errors.New("something follows the end of its archive, or too many zeros")
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("something follows the end of its archive: %w", err)
		}
	}
}

// WriteTar writes the pack as a .tar.zst, the same bytes for the same pack.
func (p *Pack) WriteTar(w io.Writer) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		data := p.files[name]
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := t.Write(data); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// Tar returns what WriteTar writes. It is made once; the caller must not change it.
func (p *Pack) Tar() ([]byte, error) {
	p.tar.once.Do(func() {
		var b bytes.Buffer
		p.tar.err = p.WriteTar(&b)
		p.tar.bytes = b.Bytes()
	})
	return p.tar.bytes, p.tar.err
}

// Sum returns the SHA-256, in hex, of what WriteTar writes. The pack is published under it.
func (p *Pack) Sum() (string, error) {
	b, err := p.Tar()
	return checksum(b), err
}

// KnownTo reports whether s has every schema that the pack was sealed with.
func (p *Pack) KnownTo(s relevance.Schemas) bool {
	for name, prints := range p.Manifest.Schemas {
		if s[name].Family == nil {
			return false
		}
		for _, one := range strings.Fields(prints) {
			if f, err := s[name].Family.Of([]string{one}); f == nil || err != nil {
				return false
			}
		}
	}
	return true
}

// newVersion is the form of versions that Seal takes. Packs that were sealed by earlier
// versions of Millrace may have others.
var newVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$`)

// Seal makes a pack of a directory that has a spec and the files that it names, golden
// rows and a card. It checks what [Validate] checks, and reads golden rows only as index
// nodes do. If all is well it writes the manifest into the directory.
func Seal(dir string, schemas relevance.Schemas) (*Pack, error) {
	files, err := readDir(dir)
	if err != nil {
		return nil, fmt.Errorf("relevance: seal: %w", err)
	}
	delete(files, ManifestFile)
	if _, err := ReadGolden(GoldenFile, files[GoldenFile]); err != nil {
		return nil, fmt.Errorf("relevance: seal: %w", err)
	}
	m, err := (&Pack{files: files}).model(schemas)
	if err != nil {
		return nil, err
	}
	if err := relevance.CheckName(m.Name()); err != nil {
		return nil, err
	}
	if !newVersion.MatchString(m.Version()) {
		return nil, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "version", Detail: fmt.Sprintf("%+.120q may look like another version, or like a flag", m.Version()),
			WayOut: "write 1 to 100 letters, digits, '.', '_', '+' and '-' of ASCII, a letter or digit first, in its spec",
		}
	}
	manifest := Manifest{Format: packFormat, Name: m.Name(), Version: m.Version(), Features: m.FeatureTypes(), Schemas: map[string]string{}, Files: map[string]string{}}
	for _, name := range append(slices.Clone(m.Spec().Schemas), m.Spec().Entity, m.Spec().Object) {
		if prints := (records{schemas[name]}).prints(); prints != "" {
			manifest.Schemas[name] = prints
		}
	}
	for name, data := range files {
		manifest.Files[name] = checksum(data)
	}
	text, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return nil, err
	}
	files[ManifestFile] = append(text, '\n')
	p, err := newPack(files)
	if err != nil {
		return nil, fmt.Errorf("relevance: seal: %w", err)
	}
	if _, err := p.validate(schemas, typed); err != nil {
		return nil, err
	}
	return p, os.WriteFile(filepath.Join(dir, ManifestFile), files[ManifestFile], 0o644)
}
