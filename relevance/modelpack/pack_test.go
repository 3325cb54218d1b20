package modelpack

import (
	"archive/tar"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/schemas"
)

// The model of most packs here.
var (
	//go:embed testdata/team/spec.yaml
	packSpec string
	//go:embed testdata/team/parameters.yaml
	packParameters string
)

// writePack writes the files of a pack without its manifest, with golden rows
// made by the model itself, some of which have a record.
func writePack(t *testing.T, files map[string]string, rows int) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, err := relevance.ParseFile(os.DirFS(dir), SpecFile, relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	var golden bytes.Buffer
	golden.WriteString(files[GoldenFile])
	if golden.Len() > 0 {
		rows = 8
	}
	for i := range min(rows, 8) {
		golden.Write(recordRow(t, m, i))
		rows--
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range rows {
		named := map[string]any{}
		for _, f := range m.FeatureTypes() {
			switch {
			case r.IntN(5) == 0:
			case f.Type == "string":
				named[f.Name] = []string{"post", "share", "other"}[r.IntN(3)]
			default:
				named[f.Name] = float64(r.IntN(3))
			}
		}
		values, err := featureValues(m, named)
		if err != nil {
			t.Fatal(err)
		}
		score := m.ScoreFeatures(values)[0]
		if math.IsNaN(score) {
			continue
		}
		line, err := json.Marshal(Golden{Features: named, Score: &score})
		if err != nil {
			t.Fatal(err)
		}
		golden.Write(append(line, '\n'))
	}
	if err := os.WriteFile(filepath.Join(dir, GoldenFile), golden.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// recordRow is a golden row with a record, as the model computes it.
func recordRow(t *testing.T, m *relevance.Model, n int) []byte {
	t.Helper()
	layouts := relevance.ShippedSchemas()
	record := layouts["millrace.Activity"].Layout
	if len(m.Spec().Schemas) > 0 {
		record = layouts[m.Spec().Schemas[0]].Layout
	}
	row := Golden{Record: sampleRow(record, n), Viewer: map[string]any{"id": "member:1"}, AsOf: 1.7e12 + float64(n)*1e6}
	if l := layouts[m.Spec().Entity].Layout; l != nil {
		row.Entity = sampleRow(l, n)
	}
	if l := layouts[m.Spec().Object].Layout; l != nil {
		row.Object = sampleRow(l, n)
	}
	for _, v := range m.Spec().Source().Viewer {
		if v.Name != "id" {
			row.Viewer[v.Name] = map[plan.Kind]any{plan.Bool: true, plan.Number: 0.5, plan.String: "post", plan.Numbers: []any{1.0, 2.0}, plan.Strings: []any{"post"}}[v.Kind]
		}
	}
	if err := row.Complete(m, layouts); err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	return append(line, '\n')
}

// sampleRow has a value in every field.
func sampleRow(l *column.Layout, n int) map[string]any {
	row := map[string]any{}
	for i, f := range l.Fields() {
		if strings.HasPrefix(f.Name, "$") {
			continue
		}
		row[f.Name] = map[column.Kind]any{
			column.Bool: true, column.Int: float64(n + i), column.Double: float64(n) + 0.5, column.Time: 1.7e12 - float64(n+i)*977_000,
			column.String: "post", column.Doubles: []any{1.0, float64(n)}, column.Strings: []any{"post", "member:1"},
		}[f.Kind]
	}
	return row
}

func teamFiles() map[string]string {
	return map[string]string{SpecFile: packSpec, "parameters.yaml": packParameters, CardFile: "# team\n"}
}

func seal(t *testing.T, dir string) *Pack {
	t.Helper()
	p, err := Seal(dir, relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// No pack takes the name of a model that every binary has.
func TestNoPackOfABuiltInName(t *testing.T) {
	for _, name := range relevance.Builtin().Names() {
		files := teamFiles()
		files[SpecFile] = regexp.MustCompile(`(?m)^name: .*$`).ReplaceAllString(packSpec, "name: "+name)
		if _, err := Seal(writePack(t, files, 50), relevance.ShippedSchemas()); err == nil || !strings.Contains(err.Error(), name+" is built in") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPackRoundTrip(t *testing.T) {
	dir := writePack(t, teamFiles(), 50)
	sealed := seal(t, dir)
	fromDir, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "team.tar.zst")
	var b bytes.Buffer
	if err := fromDir.WriteTar(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	fromTar, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Pack{fromDir, fromTar} {
		if p.Checksum != sealed.Checksum || p.Card != "# team\n" || p.Manifest.Schemas["millrace.Activity"] != schemas.Activity().Fingerprint().String() {
			t.Errorf("got %+v", p.Manifest)
		}
		m, err := Validate(p, relevance.ShippedSchemas())
		if err != nil {
			t.Fatal(err)
		}
		if m.Parameters().Weights["likes"].Scalar != 0.25 {
			t.Error("the parameters are not those of the file")
		}
		if all := m.Viewers(); len(all) != 1 || all[0]["id"] != "member:1" {
			t.Errorf("the viewers are %v", all)
		}
	}
}

// TestPackMutations: every byte of every file is covered by a checksum, and
// nothing may be added, removed or linked.
func TestPackMutations(t *testing.T) {
	dir := writePack(t, teamFiles(), 20)
	seal(t, dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(good) && e.Name() != ManifestFile; i += 7 {
			bad := bytes.Clone(good)
			bad[i] ^= 1
			mustRefuse(t, dir, path, bad, "checksum")
		}
		mustRefuse(t, dir, path, nil, e.Name())
		if err := os.WriteFile(path, good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	extra := filepath.Join(dir, "extra")
	mustRefuse(t, dir, extra, []byte("x"), "extra is there and not listed")
	os.Remove(extra)
	if err := os.Symlink("/etc/passwd", extra); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "plain file") {
		t.Errorf("a link: %v", err)
	}
	os.Remove(extra)
	if _, err := Open(dir); err != nil {
		t.Errorf("put back: %v", err)
	}
}

// mustRefuse writes or removes a file and expects OpenPack to say why not.
func mustRefuse(t *testing.T, dir, path string, data []byte, want string) {
	t.Helper()
	var err error
	if data == nil {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", filepath.Base(path), err, want)
	}
}

// A pack has so many files, of such names and sizes.
func TestFilesOfAPackHaveBounds(t *testing.T) {
	with := func(n int, bytes int64) *packFiles {
		f := &packFiles{files: map[string][]byte{}, bytes: bytes}
		for i := range n {
			f.files[fmt.Sprint("f", i)] = nil
		}
		return f
	}
	for _, c := range []struct {
		to   *packFiles
		name string
		size int64
		want string
	}{
		{with(0, 0), "a", 3, ""},
		{with(0, 0), "a", 4, "a: unexpected EOF"},
		{with(0, 0), "", 0, `"" is not the name`},
		{with(0, 0), ".", 0, `"." is not the name`},
		{with(0, 0), "..", 0, `".." is not the name`},
		{with(0, 0), "a/b", 0, `"a/b" is not the name`},
		{with(0, 0), `a\b`, 0, `"a\\b" is not the name`},
		{with(1, 0), "f0", 0, "f0 stands twice"},
		{with(maxPackFiles-1, 0), "a", 0, ""},
		{with(maxPackFiles, 0), "a", 0, "more than 64 files"},
		{with(0, 0), "a", -1, "a has -1 bytes, more than"},
		{with(0, 0), "a", maxPackBytes + 1, "a has 50331649 bytes, more than 50331648"},
		{with(0, maxPackBytes-3), "a", 3, ""},
		{with(0, maxPackBytes-2), "a", 3, "more than 50331648 bytes"},
		{with(0, 0), ManifestFile, maxManifestBytes, "manifest.json: unexpected EOF"},
		{with(0, 0), ManifestFile, maxManifestBytes + 1, "manifest.json has 1048577 bytes, more than 1048576"},
		{with(0, 0), SpecFile, document.MaxBytes + 1, "spec.yaml has"},
		{with(0, 0), CardFile, maxCardBytes + 1, "card.md has 1048577 bytes, more than 1048576"},
		{with(0, 0), GoldenFile, maxGoldenBytes + 1, "keep fewer rows, of all kinds of records: 10000 at most"},
	} {
		before := c.to.bytes
		err := c.to.add(c.name, c.size, strings.NewReader("abc"))
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q of %d bytes: %v", c.name, c.size, err)
		}
		if err == nil && (len(c.to.files[c.name]) != int(c.size) || c.to.bytes != before+c.size) {
			t.Errorf("%q is %q, and all are %d bytes", c.name, c.to.files[c.name], c.to.bytes)
		}
	}
}

// A manifest is refused with all that is wrong with it.
func TestManifestsAreRefused(t *testing.T) {
	manifest := func(text string) map[string][]byte {
		return map[string][]byte{ManifestFile: []byte(text), "a": []byte("x")}
	}
	for _, c := range []struct {
		files map[string][]byte
		want  string
	}{
		{map[string][]byte{}, "it has no manifest.json"},
		{manifest("{"), "manifest.json: unexpected EOF"},
		{manifest(`{"format":2,"colour":1}`), `manifest.json: json: unknown field "colour"`},
		{manifest(`{"format":3}`), "manifest.json: format 3; this binary reads 2"},
		{manifest(`{"format":2,"files":{"a":"00","b":"11"}}`), "a has the checksum 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881, and the manifest says 00\nb is listed and not there\nit has no spec.yaml\nit has no golden.ndjson\nit has no card.md"},
		{manifest(`{"format":2}`), "a is there and not listed\nit has no"},
	} {
		if _, err := newPack(c.files); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v", c.files[ManifestFile], err)
		}
	}
}

// failing fails after so many bytes.
type failing struct{ room int }

func (f *failing) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errors.New("the disk is full")
	}
	return len(b), nil
}

// A pack is the same bytes each time, which have its sum; and whoever cannot write them is told.
func TestPacksAsBytes(t *testing.T) {
	files := teamFiles()
	noise := make([]byte, 1<<20) // more than the compression keeps to itself
	for i, r := 0, rand.New(rand.NewPCG(4, 4)); i < len(noise); i++ {
		noise[i] = byte(r.Uint32())
	}
	files["zz"] = string(noise)
	p := seal(t, writePack(t, files, 20))
	first, err := p.Tar()
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := p.WriteTar(&again); err != nil || !bytes.Equal(first, again.Bytes()) {
		t.Errorf("%d bytes and then %d: %v", len(first), again.Len(), err)
	}
	if sum, err := p.Sum(); err != nil || sum != checksum(first) {
		t.Errorf("the sum is %s: %v", sum, err)
	}
	for _, room := range []int{0, 100, len(first) / 2, len(first) - 1} {
		if err := p.WriteTar(&failing{room}); err == nil || !strings.Contains(err.Error(), "the disk is full") {
			t.Errorf("room for %d bytes of %d: %v", room, len(first), err)
		}
	}
	if got, err := Read(bytes.NewReader(first)); err != nil || got.Checksum != p.Checksum || !bytes.Equal(got.files["zz"], noise) {
		t.Errorf("read again: %v", err)
	}
	for _, n := range []int{0, 3, len(first) / 2} {
		if _, err := Read(bytes.NewReader(first[:n])); err == nil || !strings.HasPrefix(err.Error(), "relevance: read pack: ") {
			t.Errorf("the first %d bytes are read: %v", n, err)
		}
	}
}

// Archives of others may have ./ before names, and nothing but plain files.
func TestArchivesOfOthers(t *testing.T) {
	for what, c := range map[string]struct {
		header tar.Header
		want   string
	}{
		"with ./":     {tar.Header{Name: "./a", Typeflag: tar.TypeReg, Size: 1}, "it has no manifest.json"},
		"a directory": {tar.Header{Name: "a/", Typeflag: tar.TypeDir}, `"a/" is not a plain file`},
		"a link":      {tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, `"a" is not a plain file`},
		"another":     {tar.Header{Name: "/a", Typeflag: tar.TypeReg}, `"/a" is not the name of a file of a pack`},
	} {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(z)
		if err := w.WriteHeader(&c.header); err != nil {
			t.Fatal(err)
		}
		if c.header.Size > 0 {
			if _, err := w.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(bytes.NewReader(b.Bytes())); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if files, err := untar(bytes.NewReader(b.Bytes())); (err == nil) != (what == "with ./") || err == nil && string(files["a"]) != "x" {
			t.Errorf("%s: %q, %v", what, files, err)
		}
	}
}

// A pack is known where all its schemas are.
func TestPacksOfUnknownSchemas(t *testing.T) {
	p := &Pack{}
	p.Manifest.Schemas = map[string]string{"millrace.Activity": schemas.Activity().Fingerprint().String(), "millrace.Features": schemas.Features().Fingerprint().String()}
	all := relevance.ShippedSchemas()
	if !p.KnownTo(all) || !(&Pack{}).KnownTo(nil) {
		t.Error("what ships is not known")
	}
	delete(all, "millrace.Features")
	if p.KnownTo(all) {
		t.Error("of two schemas one is known, and so is the pack")
	}
	all["millrace.Features"] = relevance.Records{Layout: schemas.Features().Layout()}
	if p.KnownTo(all) {
		t.Error("of a schema only the layout is known, and so is the pack")
	}
	p.Manifest.Schemas["millrace.Features"] += " 0011223344556677"
	if p.KnownTo(relevance.ShippedSchemas()) {
		t.Error("of a family one schema is not known, and the pack is")
	}
}

// What cannot be sealed is refused, and no manifest is written.
func TestSealRefuses(t *testing.T) {
	if _, err := Seal(filepath.Join(t.TempDir(), "none"), relevance.ShippedSchemas()); err == nil || !strings.HasPrefix(err.Error(), "relevance: seal: ") {
		t.Errorf("no directory: %v", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); err == nil || !strings.HasPrefix(err.Error(), "relevance: open pack: ") {
		t.Errorf("no directory is opened: %v", err)
	}
	for what, c := range map[string]struct{ file, text, want string }{
		"a spec with a fault":  {SpecFile, "name: team", "the spec has no version"},
		"a row with a fault":   {GoldenFile, `{"score":1,"score":2}`, `relevance: seal: golden.ndjson:1: "score" stands twice`},
		"no card":              {CardFile, "", "relevance: seal: it has no card.md"},
		"no rows":              {GoldenFile, "", "relevance: seal: it has no golden.ndjson"},
		"rows of other scores": {GoldenFile, `{"features":{"likes":1,"hour":0,"language":0},"score":1}`, "golden rows are off"},
		"a directory":          {"dir", "", "relevance: seal: dir is not a plain file"},
		"no parameters":        {"parameters.yaml", "", "parameters.yaml"},
	} {
		dir := writePack(t, teamFiles(), 20)
		path := filepath.Join(dir, c.file)
		err := os.WriteFile(path, []byte(c.text), 0o644)
		if c.text == "" {
			err = os.Remove(path)
		}
		if c.file == "dir" {
			err = os.Mkdir(path, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Seal(dir, relevance.ShippedSchemas()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(filepath.Join(dir, ManifestFile)); err == nil {
			t.Errorf("%s: a manifest is written", what)
		}
	}
	// Sealed again, a pack has another manifest, and the one before does not count as a file.
	dir := writePack(t, teamFiles(), 20)
	first := seal(t, dir)
	if second := seal(t, dir); second.Checksum != first.Checksum || second.Manifest.Files[ManifestFile] != "" {
		t.Errorf("sealed twice it is another: %+v", second.Manifest)
	}
	for version, ok := range map[string]bool{"1.9+a_b-C": true, strings.Repeat("9", 100): true, "_1": false, "1/2": false} {
		files := teamFiles()
		files[SpecFile] = strings.Replace(packSpec, "1.9", version, 1)
		if _, err := Seal(writePack(t, files, 20), relevance.ShippedSchemas()); (err == nil) != ok {
			t.Errorf("version %s: %v", version, err)
		}
	}
	values, err := first.ViewerValues()
	if err != nil || len(values) != 1 || values["languages"] != "list(string)" {
		t.Errorf("the viewer's values are %v: %v", values, err)
	}
}

func TestTarRefuses(t *testing.T) {
	for _, src := range []string{"", "not zstd", strings.Repeat("\x28\xb5\x2f\xfd", 3)} {
		if files, err := untar(strings.NewReader(src)); err == nil && len(files) > 0 {
			t.Errorf("%q is accepted", src)
		}
	}
}

func TestAdmission(t *testing.T) {
	for _, c := range []struct {
		name, file, old, new, want string
	}{
		{"a field of no schema", SpecFile, "record.likes", "record.likse", "likse"},
		{"an infinite weight", "parameters.yaml", "0.25", ".inf", "not finite"},
		{"another weight", "parameters.yaml", "0.25", "0.26", "golden rows are off"},
		{"another name", SpecFile, "name: team", "name: taem", "manifest.json says team"},
		{"another feature", SpecFile, "  verb: record.verb\n", "", "weight for verb"},
		{"a row of an unknown feature", GoldenFile, `{"features":{`, `{"features":{"lieks":1,`, "no feature lieks"},
		{"a row of another type", GoldenFile, "", `{"features":{"hour":"x"},"score":0}`, "feature hour"},
		{"no rows", GoldenFile, "", "", "0 rows"},
		{"no JSON", GoldenFile, "", "{", "golden.ndjson:1: unexpected EOF"},
	} {
		dir := writePack(t, teamFiles(), 30)
		p := seal(t, dir)
		text := strings.Replace(string(p.files[c.file]), c.old, c.new, 1)
		if c.old == "" {
			text = c.new
		}
		p.files[c.file] = []byte(text)
		if _, err := Validate(p, relevance.ShippedSchemas()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestOpenWhatIsNoPack: the fault says what the file is.
func TestOpenWhatIsNoPack(t *testing.T) {
	model, err := os.ReadFile("../trees/testdata/lightgbm/model_simple.txt")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(model):       "name it in a spec.yaml",
		string(model[:300]): "ends before",
		`{"learner": {}}`:   "no objective",
		"":                  "neither a directory nor",
		"name: home":        "neither a directory nor",
	} {
		file := filepath.Join(t.TempDir(), "model")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// TestVersionsStandBesideEachOther: a version that comes, whether it is older
// or newer, leaves the others as they are, and each is found by all three of
// its name, version and checksum.
func TestVersionsStandBesideEachOther(t *testing.T) {
	r := relevance.Builtin()
	admit := func(version, weight, sum string) (relevance.ID, error) {
		files := teamFiles()
		files[SpecFile] = strings.Replace(packSpec, "1.9", version, 1)
		files["parameters.yaml"] = strings.Replace(packParameters, "0.25", weight, 1)
		return seal(t, writePack(t, files, 20)).Admit(r, sum, relevance.ShippedSchemas())
	}
	var ids []relevance.ID
	for _, c := range [][3]string{{"1.9", "0.25", "a"}, {"1.10", "0.5", "b"}, {"1.8", "0.75", "c"}, {"1.9", "0.25", "a"}} {
		id, err := admit(c[0], c[1], c[2])
		if want := (relevance.ID{Name: "team", Version: c[0], Sum: c[2]}); err != nil || id != want {
			t.Fatalf("%v, want %v: %v", id, want, err)
		}
		ids = append(ids, id)
	}
	for i, weight := range []float64{0.25, 0.5, 0.75} {
		if m, err := r.Find(ids[i]); err != nil || m.Parameters().Weights["likes"].Scalar != weight || m.Version() != ids[i].Version {
			t.Errorf("%s: %v, %v", ids[i], m, err)
		}
	}
	for _, id := range []relevance.ID{{Name: "team", Version: "1.9", Sum: "b"}, {Name: "team", Version: "2", Sum: "a"}, {Name: "team", Version: "1.9", Sum: ""}} {
		var e *millrace.Error
		if _, err := r.Find(id); !errors.As(err, &e) || e.Reason != millrace.ReasonNotHere {
			t.Errorf("%v: %v", id, err)
		}
	}
	var e *millrace.Error
	if _, err := r.Find(relevance.ID{Name: "team"}); !errors.As(err, &e) || e.Reason != millrace.ReasonUnknown {
		t.Errorf("without a version: %v", err)
	}
	r.Drop(ids[0])
	if _, err := r.Find(ids[0]); err == nil {
		t.Error("what was dropped is found")
	}
	if _, err := r.Find(ids[1]); err != nil {
		t.Error(err)
	}
	another := seal(t, writePack(t, teamFiles(), 20))
	another.Manifest.Name = "home" // as binaries of before sealed it
	if _, err := another.Admit(r, "d", relevance.ShippedSchemas()); err == nil || !strings.Contains(err.Error(), "home is built in") {
		t.Errorf("a built-in model is replaced: %v", err)
	}
}

func TestTreesNeedHundredRows(t *testing.T) {
	model, err := os.ReadFile("../trees/testdata/lightgbm/model_simple.txt")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		SpecFile: `name: forest
version: "1"
schemas: [millrace.Activity]
features: {X1: record.likes, X2: record.shares}
scorer: trees
trees: {model: model.txt}
`, "model.txt": string(model), CardFile: "x"}
	if _, err := Seal(writePack(t, files, 99), relevance.ShippedSchemas()); err == nil || !strings.Contains(err.Error(), "100 are needed") {
		t.Errorf("99 rows: %v", err)
	}
	seal(t, writePack(t, files, 100))
}

func TestDiff(t *testing.T) {
	a := seal(t, writePack(t, teamFiles(), 20))
	files := teamFiles()
	files[SpecFile] = strings.NewReplacer("1.9", "2", "log1p(record.likes)", "sqrt(record.likes)", "  language: record.language in viewer.languages\n", "").Replace(packSpec)
	files["parameters.yaml"] = strings.NewReplacer("0.25", "0.5", "  language: 2\n", "", "share: 0.5", "share: 0.75").Replace(packParameters)
	b := seal(t, writePack(t, files, 20))
	x, err := Validate(a, relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	y, err := Validate(b, relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	golden, err := b.GoldenRows()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range Diff(x, y, golden) {
		lines = append(lines, c.String())
	}
	got := strings.Join(lines, "\n")
	for _, want := range []string{
		"version: 2, was 1.9",
		"feature language: gone",
		"feature likes: sqrt(record.likes), was log1p(record.likes)",
		"weight likes: 0.5, was 0.25",
		"weight verb: {post: 1, share: 0.75}, was {post: 1, share: 0.5}",
		"golden rows move",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if d := Diff(x, x, golden); len(d) > 0 {
		t.Errorf("a model differs from itself: %v", d)
	}
}

// Every difference of two models is told in a line, and how far scores move.
func TestDiffTellsEverything(t *testing.T) {
	model := func(scorer, features, parameters string) *relevance.Model {
		t.Helper()
		m, err := relevance.Parse(SpecFile, []byte("name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {"+features+"}\nscorer: "+scorer+"\nparameters: {"+parameters+"}\n"), relevance.ShippedSchemas())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	const one = "a: record.likes"
	plain := model("linear", one, "weights: {a: 1}")
	tables := model("linear", one+`, b: "lookup(codes, record.verb, 0)"`, "weights: {a: 1, b: 1}, tables: {codes: {x: 1}}")
	grow := func(trees int) *relevance.Model {
		file := "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=0\nobjective=regression\nfeature_names=a\n\n" + strings.Repeat("Tree=0\nnum_leaves=1\nleaf_value=1\n\n", trees) + "end of trees\n"
		m, err := relevance.SpecText{Name: SpecFile, Text: []byte("name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {" + one + "}\nscorer: trees\ntrees: {model: model}\n"), Open: func(string) ([]byte, error) { return []byte(file), nil }}.Parse(relevance.ShippedSchemas())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	rows := []Golden{{Features: map[string]any{"a": 1.0}}, {Features: map[string]any{"a": 3.0}}, {Features: map[string]any{"a": 0.0}}, {Features: map[string]any{"other": 1.0}}, {Features: map[string]any{"a": 9.0, "b": 9.0}}, {}}
	for what, c := range map[string]struct {
		a, b *relevance.Model
		want string
	}{
		"nothing":        {plain, plain, ""},
		"weights":        {plain, model("linear", one, "weights: {a: 2}"), "weight a: 2, was 1\nscores: 2 of 4 golden rows move, by 1 on average and 3 at most"},
		"the bias":       {plain, model("linear", one, "weights: {a: 1}, bias: 0.5"), "bias: 0.5, was 0\nscores: 3 of 4 golden rows move, by 0.375 on average and 0.5 at most"},
		"the scorer":     {plain, model("logistic", one, "weights: {a: 1}"), "scorer: logistic, was linear\nscores: 3 of 4 golden rows move, by 0.704 on average and 2.05 at most"},
		"a feature":      {tables, plain, "feature b: gone\ntable codes: gone\nscores: 0 of 4 golden rows move, by 0 on average and 0 at most; 3 more have a score in one model only"},
		"the other way":  {plain, tables, "feature b: new: lookup(codes, record.verb, 0)\ntable codes: new: {x: 1}\nscores: "},
		"an expression":  {plain, model("linear", "a: record.likes  +   1.0", "weights: {a: 1}"), "feature a: record.likes + 1.0, was record.likes"},
		"a table":        {tables, model("linear", one+`, b: "lookup(codes, record.verb, 0)"`, "weights: {a: 1, b: 1}, tables: {codes: {x: 2}}"), "table codes: {x: 2}, was {x: 1}"},
		"trees":          {grow(1), grow(3), "trees: 3, were 1\nscores: 4 of 4 golden rows move, by 2 on average and 2 at most"},
		"missing scores": {plain, grow(1), "scorer: trees, was linear\nscores: 2 of 4 golden rows move, by 0.75 on average and 2 at most; 1 more have a score in one model only"},
	} {
		var lines []string
		for _, d := range Diff(c.a, c.b, rows) {
			lines = append(lines, d.String())
		}
		if got := strings.Join(lines, "\n"); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, c.want)
		}
	}
}

// FuzzPack: a manifest and a golden file of any bytes are refused or accepted,
// and what is accepted validates or says why not.
func FuzzPack(f *testing.F) {
	f.Add([]byte(`{"format":2,"name":"team","version":"1","features":[],"files":{}}`), []byte(`{"features":{"likes":1},"score":1}`))
	f.Fuzz(func(t *testing.T, manifest, golden []byte) {
		files := map[string][]byte{ManifestFile: manifest, GoldenFile: golden, SpecFile: []byte(strings.Replace(packSpec, "parameters.yaml", `{weights: {likes: 1, verb: {a: 1}, hour: 1, language: 1}}`, 1)), CardFile: {}}
		p, err := newPack(files)
		if err != nil {
			p = &Pack{files: files}
		}
		if _, err := Validate(p, relevance.ShippedSchemas()); err == nil && p.Checksum == "" {
			t.Error(fmt.Sprint("accepted ", p.Manifest))
		}
	})
}

// Bytes behind the end of an archive would be kept and handed on, and read by nobody.
func TestNothingFollowsAPack(t *testing.T) {
	dir := writePack(t, map[string]string{SpecFile: packSpec, "parameters.yaml": packParameters, CardFile: "A team's.\n"}, 20)
	p, err := Seal(dir, relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := p.WriteTar(&packed); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bytes.NewReader(packed.Bytes())); err != nil {
		t.Fatal(err)
	}
	second := append(bytes.Clone(packed.Bytes()), packed.Bytes()...) // another frame
	zeros, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	far := append(bytes.Clone(packed.Bytes()), zeros.EncodeAll(make([]byte, maxPackBytes+1<<20), nil)...)
	for what, body := range map[string][]byte{"bytes": append(bytes.Clone(packed.Bytes()), "more"...), "a frame": second, "a frame behind zeros": append(far, packed.Bytes()...)} {
		if _, err := Read(bytes.NewReader(body)); err == nil || !strings.Contains(err.Error(), "something follows the end") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A version is sealed that cannot be taken for another.
func TestSealRefusesALookAlike(t *testing.T) {
	for _, version := range []string{"\uff11", "1\u200b", "-1"} {
		spec := strings.Replace(packSpec, `"1.9"`, `"`+version+`"`, 1)
		dir := writePack(t, map[string]string{SpecFile: spec, "parameters.yaml": packParameters, CardFile: "A team's.\n"}, 20)
		if _, err := Seal(dir, relevance.ShippedSchemas()); err == nil || !strings.Contains(err.Error(), "may look like another version") {
			t.Errorf("%+q: %v", version, err)
		}
	}
}
