package backup

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

var seed = flag.Uint64("seed", 1, "of the random tests")

// mutation is one thing that goes wrong with a bucket.
type mutation struct {
	name string
	cut  bool // it needs one
	do   func(m *mutant)
}

// mutant is a bucket that something happened to.
type mutant struct {
	*mapped
	rng   *rand.Rand
	other *mapped // another cluster's bucket, of the same names
}

// pick returns the name of some object of these kinds, and it.
func (m *mutant) pick(kinds ...kind) (string, entry) {
	names := slices.Sorted(maps.Keys(m.mu.at))
	names = slices.DeleteFunc(names, func(n string) bool { return len(kinds) > 0 && !slices.Contains(kinds, parse(n).kind) })
	// Of parts of cuts there are many; the others shall have their turn.
	if len(kinds) == 0 && m.rng.IntN(4) > 0 {
		names = slices.DeleteFunc(names, func(n string) bool { return parse(n).partition > 2 })
	}
	name := names[m.rng.IntN(len(names))]
	return name, m.mu.at[name]
}

func (m *mutant) set(name string, data []byte) { m.mu.at[name] = entry{data: data} }

// edit changes a JSON object, and gives it its right hash again.
func (m *mutant) edit(name string, change func(fields map[string]any)) {
	var fields map[string]any
	line, _, _ := strings.Cut(string(m.mu.at[name].data), "\n")
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		panic(err)
	}
	change(fields)
	m.set(name, must(encode(fields)))
}

// editFile changes a file of some manifest.
func (m *mutant) editFile(field string, value any) {
	name, _ := m.pick(isManifest)
	m.edit(name, func(f map[string]any) { f["files"].([]any)[0].(map[string]any)[field] = value })
}

var json4 = []kind{isManifest, isCut, isCutPart, isWhose}

var mutations = []mutation{
	{"flip", false, func(m *mutant) {
		name, e := m.pick()
		data := slices.Clone(e.data)
		data[m.rng.IntN(len(data))] ^= 1 << m.rng.IntN(8)
		m.set(name, data)
	}},
	{"truncate", false, func(m *mutant) {
		name, e := m.pick()
		m.set(name, e.data[:m.rng.IntN(len(e.data))])
	}},
	{"append", false, func(m *mutant) {
		name, e := m.pick()
		m.set(name, append(slices.Clone(e.data), randomBytes(1+m.rng.IntN(9))...))
	}},
	{"missing", false, func(m *mutant) {
		name, _ := m.pick()
		delete(m.mu.at, name)
	}},
	{"extra", false, func(m *mutant) {
		names := []string{"x", "files/ab/x", "files/../../etc/passwd", "../x", "partitions/007/../x.json", "partitions/7/a.json", "partitions/720/20261122T114500.000Z-n.json",
			"cuts/../x.json", "cuts//007.json", "files/00/" + strings.Repeat("0", 64), "files/00/" + strings.Repeat("A", 64), ".tmp/x", "partitions/007/20261122T114500.000Z-n.json.part"}
		m.set(names[m.rng.IntN(len(names))], randomBytes(10))
	}},
	{"renamed", false, func(m *mutant) {
		name, e := m.pick(isManifest, isFile, isCut, isCutPart)
		delete(m.mu.at, name)
		to := map[kind]string{
			isManifest: manifestName(millrace.Partition(m.rng.IntN(4)), newID(time.Now().Add(time.Minute), "node-1", "")),
			isFile:     Ref{SHA256: Hash(randomBytes(32))}.name(),
			isCut:      cutName("other"), isCutPart: cutPartName("other", 5),
		}
		m.set(to[parse(name).kind], e.data)
	}},
	{"copied", false, func(m *mutant) {
		name, e := m.pick(isManifest, isCut, isCutPart)
		to := map[kind]string{isManifest: manifestName(2, newID(time.Now().Add(time.Minute), "node-1", "")), isCut: cutName("other"), isCutPart: cutPartName("nightly", 5)}
		m.set(to[parse(name).kind], e.data)
	}},
	{"swapped", false, func(m *mutant) {
		a, x := m.pick()
		b, y := m.pick(parse(a).kind)
		m.set(a, y.data)
		m.set(b, x.data)
	}},
	{"of another cluster", false, func(m *mutant) {
		name, _ := m.pick(json4...)
		m.set(name, m.other.mu.at[name].data)
	}},
	{"half-written", false, func(m *mutant) {
		name, e := m.pick(json4...)
		line, _, _ := strings.Cut(string(e.data), "\n")
		m.set(name, []byte(line+"\n"))
	}},
	{"future", false, func(m *mutant) {
		name, _ := m.pick(json4...)
		m.edit(name, func(f map[string]any) { f["format"] = 2; f["news"] = true })
	}},
	{"unknown field", false, func(m *mutant) {
		name, _ := m.pick(json4...)
		m.edit(name, func(f map[string]any) { f["news"] = true })
	}},
	{"link", false, func(m *mutant) {
		name, e := m.pick()
		e.odd = true
		m.mu.at[name] = e
	}},
	{"lying", false, func(m *mutant) {
		name, e := m.pick()
		e.claim = []int64{-1, 1, 1 << 40}[m.rng.IntN(3)]
		m.mu.at[name] = e
	}},
	{"path in a file's name", false, func(m *mutant) { m.editFile("name", "../../etc/passwd") }},
	{"path for a hash", false, func(m *mutant) { m.editFile("sha256", "../../../etc/passwd") }},
	{"upper case hash", false, func(m *mutant) { m.editFile("sha256", strings.Repeat("A", 64)) }},
	{"other hash", false, func(m *mutant) { m.editFile("sha256", strings.Repeat("0", 64)) }},
	{"other size", false, func(m *mutant) { m.editFile("size", []int64{-1, 0, 1, 1 << 39, 1 << 60}[m.rng.IntN(5)]) }},
	{"partition", false, func(m *mutant) {
		name, _ := m.pick(isManifest, isCutPart)
		m.edit(name, func(f map[string]any) { f["partition"] = []int{719, 720, 65535}[m.rng.IntN(3)] })
	}},
	{"offsets", true, func(m *mutant) {
		name, _ := m.pick(isCutPart)
		m.edit(name, func(f map[string]any) { f["to"] = Offsets{Content: millrace.Offset(m.rng.IntN(5)), Features: 1 << 40} })
	}},
	{"offsets of the backup", false, func(m *mutant) {
		name, _ := m.pick(isManifest)
		m.edit(name, func(f map[string]any) { f["applied"] = Offsets{Content: millrace.Offset(m.rng.IntN(50) - 5)} })
	}},
	{"offsets of the cut", true, func(m *mutant) {
		m.edit(cutName("nightly"), func(f map[string]any) { f["content"].([]any)[m.rng.IntN(partitions)] = 99 })
	}},
	{"cut of too few", true, func(m *mutant) {
		m.edit(cutName("nightly"), func(f map[string]any) { f["parts"] = f["parts"].([]any)[:719] })
	}},
	{"deep", false, func(m *mutant) {
		name, _ := m.pick(json4...)
		m.set(name, must(encode(json.RawMessage(strings.Repeat("[", 9000)+strings.Repeat("]", 9000)))))
	}},
	{"huge", false, func(m *mutant) {
		name, _ := m.pick(json4...)
		m.set(name, make([]byte, maxObjectBytes+1))
	}},
	{"empty", false, func(m *mutant) {
		name, _ := m.pick()
		m.set(name, nil)
	}},
}

// full makes a bucket of a cluster with backups, and with a cut of all
// partitions or without.
func full(t *testing.T, c Identity, withCut bool) *mapped {
	o := newMapped()
	b := impatient(o)
	if err := b.Claim(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for p := range millrace.Partition(partitions) {
		for i := range 2 {
			if p > 2 && (i > 0 || !withCut) {
				break
			}
			if _, err := back(t.Context(), b, p, []byte("shared"), []byte(fmt.Sprintf("%d of %d", i, p%4))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !withCut {
		return o
	}
	if _, err := cut(t.Context(), b, "nightly", []byte("tail")); err != nil {
		t.Fatal(err)
	}
	return o
}

// restores does what a restore does of everything in the bucket, and returns
// what it gets.
func restores(ctx context.Context, o objects.Store, ids map[millrace.Partition][]string) (*Restorable, error) {
	b := impatient(o)
	r := &Restorable{Backups: map[millrace.Partition][]string{}}
	good := map[Ref]error{}
	fetch := func(refs []Ref) error {
		for _, ref := range refs {
			if _, known := good[ref]; !known {
				_, good[ref] = b.Get(ctx, ref, 1<<20)
			}
			if good[ref] != nil {
				return good[ref]
			}
		}
		return nil
	}
	for p, all := range ids {
		for _, id := range all {
			m, err := b.Manifest(ctx, p, id)
			if err == nil {
				err = fetch(m.Refs())
			}
			if err == nil {
				r.Backups[p] = append(r.Backups[p], id)
			}
		}
	}
	cuts, err := b.Cuts(ctx)
	for _, name := range cuts {
		if c, err := b.Cut(ctx, name); err == nil && restoresCut(ctx, b, c, fetch) == nil {
			r.Cuts = append(r.Cuts, name)
		}
	}
	return r, err
}

func restoresCut(ctx context.Context, b *Bucket, c *Cut, fetch func([]Ref) error) error {
	for p := range millrace.Partition(partitions) {
		part, m, err := b.CutPart(ctx, c, p)
		if err != nil {
			return err
		}
		if err := fetch(append(m.Refs(), part.Tail)); err != nil {
			return err
		}
	}
	return nil
}

func equal(a, b *Restorable) bool {
	return slices.Equal(a.Cuts, b.Cuts) && maps.EqualFunc(a.Backups, b.Backups, func(x, y []string) bool { return slices.Equal(x, y) })
}

// RELIABILITY, inputs 92 to 104: verify and restore agree on a thousand
// mutations, nothing panics, and what is read is bounded.
func TestVerifyAndRestoreAgreeOnMutations(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 200
	}
	small, large := twins(t, false), twins(t, true)
	told := 0
	for i := range rounds {
		// A cut is of 720 partitions, and takes its time.
		of, mutate := small, mutations[i%len(mutations)]
		if i%16 == 0 {
			of = large
			mutate = mutations[i/16%len(mutations)]
		} else if mutate.cut {
			mutate = mutations[i%5]
		}
		rng := rand.New(rand.NewPCG(*seed, uint64(i)))
		m := &mutant{of.ours.clone(), rng, of.theirs}
		mutate.do(m)
		if agree(t, fmt.Sprintf("%s, round %d of seed %d", mutate.name, i, *seed), m, of.size) {
			told++
		}
	}
	t.Logf("%d of %d mutations were told; the others changed nothing", told, rounds)
}

// pair are the buckets of two clusters, whose objects have the same names.
type pair struct {
	ours, theirs *mapped
	size         int64
}

func twins(t *testing.T, withCut bool) *pair {
	p := &pair{ours: full(t, ours, withCut), theirs: full(t, Identity{Name: "theirs", ID: "2222"}, withCut)}
	byPartition := map[millrace.Partition]entry{}
	for name, e := range p.theirs.mu.at {
		if at := parse(name); at.kind == isManifest {
			byPartition[at.partition] = e
		}
	}
	for name, n := range all(t, p.ours) {
		p.size += n
		if at := parse(name); at.kind == isManifest {
			p.theirs.mu.at[name] = byPartition[at.partition]
		}
	}
	return p
}

// agree verifies a bucket and restores all of it, and reports whether verify
// told anything.
func agree(t *testing.T, what string, m *mutant, size int64) bool {
	b := impatient(m)
	ids := must(b.AllIDs(t.Context()))
	cuts := must(b.Cuts(t.Context()))
	m.mu.read = 0
	var told []*Damage
	says, err := b.Verify(t.Context(), DepthOpen, func(d *Damage) { told = append(told, d) })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if most := 4*size + 2*maxObjectBytes; m.mu.read > most {
		t.Errorf("%s: %d bytes were read, of a bucket of %d", what, m.mu.read, size)
	}
	takes := must(restores(t.Context(), m, ids))
	if !equal(says, takes) {
		t.Errorf("%s: verify and restore differ; told %v", what, told)
	}
	refused := len(cuts) > len(takes.Cuts)
	for p := range ids {
		refused = refused || len(ids[p]) > len(takes.Backups[p])
	}
	damaged := slices.ContainsFunc(told, func(d *Damage) bool { return d.Kind != Extra && d.Kind != Link })
	if refused && len(told) == 0 {
		t.Errorf("%s: restore refuses something, and verify tells nothing", what)
	}
	if damaged && !refused {
		t.Errorf("%s: restore takes everything, and verify tells %v", what, told)
	}
	if size < 1<<16 {
		if _, err := b.Expire(t.Context(), ExpireOptions{Keep: 1}); err != nil && !errors.As(err, new(*Damage)) && !errors.Is(err, ErrUnclaimed) {
			t.Errorf("%s: expiry: %v", what, err)
		}
	}
	return len(told) > 0
}

// All of several damages is told, and not the first alone.
func TestVerifyTellsAllDamage(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		var want []string
		for p := range millrace.Partition(5) {
			m, err := back(t.Context(), b, p, fmt.Append(nil, "a", p), fmt.Append(nil, "b", p))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range m.Files {
				want = append(want, f.name())
			}
			data := []byte("other")[:f0(m)]
			if err := errors.Join(
				o.Write(t.Context(), m.Files[0].name(), readerOf(data), false),
				o.Remove(t.Context(), m.Files[1].name()),
			); err != nil {
				t.Fatal(err)
			}
		}
		for depth, kinds := range map[Depth][]DamageKind{DepthFiles: {Missing}, DepthOpen: {Missing, WrongBytes}} {
			var got []string
			r, err := impatient(o).Verify(t.Context(), depth, func(d *Damage) {
				got = append(got, d.Object)
				if !slices.Contains(kinds, d.Kind) {
					t.Errorf("%v: %v", depth, d)
				}
			})
			if err != nil || len(r.Backups) != 0 || len(got) != len(want)/2*len(kinds) {
				t.Errorf("%v: %v, %v, told %v", depth, r, err, got)
			}
		}
	})
}

func f0(m *Manifest) int { return int(m.Files[0].Size) }

// Links in a directory, of files, of directories and out of it, are refused,
// and what they point at is neither read nor written.
func TestLinksAreRefused(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []func(root string, m *Manifest) error{
		func(root string, m *Manifest) error { // a file, with the right bytes
			name := filepath.Join(root, m.Files[0].name())
			return errors.Join(os.Rename(name, name+"-moved"), os.Symlink(name+"-moved", name))
		},
		func(root string, m *Manifest) error { // out of the directory
			name := filepath.Join(root, m.Files[0].name())
			return errors.Join(os.Remove(name), os.Symlink(outside, name))
		},
		func(root string, m *Manifest) error { // the directory of a file
			dir := filepath.Dir(filepath.Join(root, m.Files[0].name()))
			return errors.Join(os.Rename(dir, dir+"-moved"), os.Symlink(dir+"-moved", dir))
		},
		func(root string, m *Manifest) error { // to nowhere
			name := filepath.Join(root, m.Files[0].name())
			return errors.Join(os.Remove(name), os.Symlink("nowhere", name))
		},
		func(root string, m *Manifest) error { // the manifest
			name := filepath.Join(root, manifestName(1, m.ID))
			return errors.Join(os.Rename(name, name+"-moved"), os.Symlink(name+"-moved", name))
		},
	} {
		root := t.TempDir()
		o := directory(t, root)
		b := claimed(t, o)
		m, err := back(t.Context(), b, 1, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if err := link(root, m); err != nil {
			t.Fatal(err)
		}
		_, err = b.Manifest(t.Context(), 1, m.ID)
		if err == nil {
			_, err = b.Get(t.Context(), m.Files[0].Ref, 10)
		}
		if !isKind(err, Link) {
			t.Errorf("restore: %v", err)
		}
		if _, _, err := b.Put(t.Context(), []byte("x"), nil); err == nil && isKind(b.look(t.Context(), m.Files[0].Ref), Link) {
			t.Error("it was uploaded through a link")
		}
		links := 0
		r, err := b.Verify(t.Context(), DepthFiles, func(d *Damage) {
			if d.Kind == Link {
				links++
			}
		})
		if err != nil || len(r.Backups) != 0 || links == 0 {
			t.Errorf("verify: %v, %v, %d links told", r, err, links)
		}
		if data := must(os.ReadFile(outside)); string(data) != "x" {
			t.Errorf("%q is outside", data)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzDecode: whatever the line of an object says, it is refused, or says the
// same when it is written again.
func FuzzDecode(f *testing.F) {
	whole := Manifest{Format: format, Cluster: ours, ID: "20261122T114500.000Z-node-1", Node: "n", Log: "log", Files: []File{{Name: "1.sst", Ref: Ref{Size: 1}}}}
	for _, v := range []any{whole, Cut{Format: format}, CutPart{Format: format}, map[string]any{"format": 2}} {
		f.Add(must(json.Marshal(v)))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		data := append(slices.Clone(line), '\n')
		data = fmt.Appendf(data, "%x\n", sha256.Sum256(data))
		var m, again Manifest
		if decode("x", data, &m) != nil || m.validate() != nil {
			return
		}
		if err := decode("x", must(encode(&m)), &again); err != nil || !reflect.DeepEqual(m.Refs(), again.Refs()) {
			t.Errorf("%+v was read back as %+v, %v", m, again, err)
		}
		for _, file := range m.Files {
			if strings.ContainsAny(file.Name, "/\\") || strings.HasPrefix(file.Name, ".") || file.Size < 0 {
				t.Errorf("%+v was taken", file)
			}
		}
	})
}
