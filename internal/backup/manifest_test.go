package backup

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
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

func TestManifestsComeBackNewestFirst(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		var ids []string
		for _, data := range []string{"a", "b", "c"} {
			m, err := back(t.Context(), b, 7, []byte("shared"), []byte(data))
			if err != nil {
				t.Fatal(err)
			}
			ids = append([]string{m.ID}, ids...)
			got, err := b.Manifest(t.Context(), 7, m.ID)
			if err != nil || !reflect.DeepEqual(got, m) {
				t.Errorf("%+v, %v\nwas written as %+v", got, err, m)
			}
		}
		last, err := back(t.Context(), b, 719, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		all, err := b.AllIDs(t.Context())
		if want := map[millrace.Partition][]string{7: ids, 719: {last.ID}}; err != nil || !reflect.DeepEqual(all, want) {
			t.Errorf("%v, %v; want %v", all, err, want)
		}
		newest, err := b.Newest(t.Context(), func(d *Damage) { t.Error(d) })
		if err != nil || len(newest) != 2 || newest[7].ID != ids[0] || newest[719].ID != last.ID {
			t.Errorf("newest %v, %v", newest, err)
		}
		i := 0
		for m, err := range b.Manifests(t.Context(), 7, time.Time{}, func(d *Damage) { t.Error(d) }) {
			if err != nil || i == len(ids) || m.ID != ids[i] {
				t.Errorf("%d is %v, %v; want %v", i, m, err, ids)
			}
			i++
		}
		if i != len(ids) {
			t.Errorf("%d backups; want %v", i, ids)
		}
		if err := o.List(t.Context(), holdsPrefix, func(o objects.Object) error { return errors.New(o.Name) }); err != nil {
			t.Errorf("a hold is left: %v", err)
		}
	})
}

func TestNewestPassesOverDamage(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		first, err := back(t.Context(), b, 3, []byte("1"))
		if err != nil {
			t.Fatal(err)
		}
		second, err := back(t.Context(), b, 3, []byte("2"))
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Write(t.Context(), manifestName(3, second.ID), strings.NewReader("{}\n"), false); err != nil {
			t.Fatal(err)
		}
		var told []*Damage
		newest, err := b.Newest(t.Context(), func(d *Damage) { told = append(told, d) })
		if err != nil || newest[3] == nil || newest[3].ID != first.ID || len(told) != 1 || told[0].Kind != Torn {
			t.Errorf("newest %v, told %v, %v", newest[3], told, err)
		}
	})
}

// What is a link where a backup should be is damage, and no backup that was
// never there.
func TestNewestTellsOfLinks(t *testing.T) {
	at := t.TempDir()
	b := claimed(t, directory(t, at))
	first, err := back(t.Context(), b, 3, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := back(t.Context(), b, 3, []byte("2"))
	if err != nil {
		t.Fatal(err)
	}
	name, away := filepath.Join(at, manifestName(3, second.ID)), filepath.Join(t.TempDir(), "away.json")
	if err := errors.Join(os.Rename(name, away), os.Symlink(away, name)); err != nil {
		t.Fatal(err)
	}
	var told []*Damage
	newest, err := b.Newest(t.Context(), func(d *Damage) { told = append(told, d) })
	if err != nil || newest[3] == nil || newest[3].ID != first.ID || len(told) != 1 || told[0].Kind != Link {
		t.Errorf("newest %v, told %v, %v", newest[3], told, err)
	}
}

// No more are read than are asked for, beginning with what was there at the time.
func TestManifestsAreReadAsTheyAreAskedFor(t *testing.T) {
	b := claimed(t, directory(t, t.TempDir()))
	var ids []string
	var times []time.Time
	for i := range 6 {
		m, err := back(t.Context(), b, 3, fmt.Append(nil, i))
		if err != nil {
			t.Fatal(err)
		}
		at, err := IDTime(m.ID)
		if err != nil {
			t.Fatal(err)
		}
		ids, times = append(ids, m.ID), append(times, at)
		time.Sleep(2 * time.Millisecond) // of a clock of milliseconds
	}
	if err := b.objects.Write(t.Context(), manifestName(3, ids[1]), strings.NewReader("{}\n"), false); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		by   time.Time
		do   string // the ids' indices that will do
		want string // what is asked, in order
	}{
		{"newest", time.Time{}, "05", "5"},
		{"older", time.Time{}, "02", "5432"},
		{"none", time.Time{}, "", "54320"},
		{"by a time", times[3], "02345", "3"},
		{"before a time", times[3], "02", "32"},
		{"after a time", times[3], "45", "3204"},
		{"past the damaged", times[1], "05", "0"},
		{"before all", times[0].Add(-time.Second), "25", "02"},
		{"after all", times[5].Add(time.Second), "5", "5"},
	} {
		asked := ""
		var told []*Damage
		for m, err := range b.Manifests(t.Context(), 3, c.by, func(d *Damage) { told = append(told, d) }) {
			if err != nil {
				t.Fatal(err)
			}
			at := fmt.Sprint(slices.Index(ids, m.ID))
			asked += at
			if strings.Contains(c.do, at) {
				break
			}
		}
		if asked != c.want {
			t.Errorf("%s: read %s; want %s", c.name, asked, c.want)
		}
		if strings.Contains(asked, "0") != (len(told) == 1) {
			t.Errorf("%s: asked %s and told %v", c.name, asked, told)
		}
	}
}

// A manifest counts when all its files are there, and not before.
func TestWriteManifestLooksForItsFiles(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		m, err := back(t.Context(), b, 1, []byte("there"), []byte("gone"))
		if err != nil {
			t.Fatal(err)
		}
		gone := m.Files[1].Ref
		if err := o.Remove(t.Context(), gone.name()); err != nil {
			t.Fatal(err)
		}
		var missing MissingFiles
		if err := b.WriteManifest(t.Context(), m); !errors.As(err, &missing) || len(missing) != 1 || missing[0] != gone {
			t.Errorf("a file is gone: %v", err)
		}
		if ids, err := b.IDs(t.Context(), 1); err != nil || len(ids) != 1 {
			t.Errorf("%v, %v: it counts all the same", ids, err)
		}
		if _, uploaded, err := b.Put(t.Context(), []byte("gone"), nil); !uploaded || err != nil {
			t.Errorf("uploaded %v, %v", uploaded, err)
		}
		if err := b.WriteManifest(t.Context(), m); err != nil {
			t.Error(err)
		}
	})
}

func TestIDsRiseWhenTheClockGoesBack(t *testing.T) {
	now := time.Date(2026, 11, 22, 11, 45, 0, 0, time.UTC)
	id := newID(now, "node-1", "")
	if want := "20261122T114500.000Z-node-1"; id != want {
		t.Errorf("%s, want %s", id, want)
	}
	for _, node := range []millrace.NodeID{"node-1", "a", "../../x", "", "é"} {
		for _, step := range []time.Duration{0, -time.Hour, time.Second, -24 * 365 * time.Hour} {
			next := newID(now.Add(step), node, id)
			if !goodID.MatchString(next) || next <= id {
				t.Errorf("%s comes after %s", next, id)
			}
			id = next
		}
	}
}

// What is no manifest of this partition, cluster and format is told by itself.
func TestManifestsTellWhatTheyAre(t *testing.T) {
	b := claimed(t, directory(t, t.TempDir()))
	m, err := back(t.Context(), b, 5, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	name := manifestName(5, m.ID)
	for want, change := range map[DamageKind]func(m *Manifest){
		Newer:   func(m *Manifest) { m.Format = 2 },
		Foreign: func(m *Manifest) { m.Cluster.ID = "other" },
		Torn:    func(m *Manifest) { m.Files[0].Name = "../x" },
	} {
		changed := *m
		changed.Files = append([]File{}, m.Files...)
		change(&changed)
		if err := b.objects.Write(t.Context(), name, strings.NewReader(string(must(encode(&changed)))), false); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Manifest(t.Context(), 5, m.ID); !isKind(err, want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	elsewhere := newID(time.Now(), "node-1", m.ID)
	for p, id := range map[millrace.Partition]string{5: elsewhere, 6: m.ID} {
		if err := b.objects.Write(t.Context(), manifestName(p, id), strings.NewReader(string(must(encode(m)))), false); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Manifest(t.Context(), p, id); !isKind(err, Foreign) {
			t.Errorf("as %s of partition %d: %v", id, p, err)
		}
	}
	if _, err := b.Manifest(t.Context(), 5, "../../millrace"); err == nil {
		t.Error("a path was taken for an id")
	}
}

// A part that is whole by itself, and not the one that the cut was made with.
func TestCutTellsWhatFits(t *testing.T) {
	base := full(t, ours, true)
	for want, change := range map[DamageKind][]func(m *mutant){
		Misfit: {
			func(m *mutant) { // another tail
				name := cutPartName("nightly", 4)
				m.edit(name, func(f map[string]any) { f["tail"] = Ref{Size: 1} })
			},
			func(m *mutant) {
				m.edit(cutName("nightly"), func(f map[string]any) { f["content"].([]any)[4] = 99 })
			},
			func(m *mutant) {
				m.edit(cutName("nightly"), func(f map[string]any) { f["log"] = "another log" })
			},
		},
		Foreign: {func(m *mutant) { m.set(cutPartName("nightly", 4), m.mu.at[cutPartName("nightly", 5)].data) }},
		Missing: {func(m *mutant) { delete(m.mu.at, cutPartName("nightly", 4)) }},
	} {
		for i, do := range change {
			m := &mutant{mapped: base.clone()}
			do(m)
			b := impatient(m)
			c, err := b.Cut(t.Context(), "nightly")
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := b.CutPart(t.Context(), c, 4); !isKind(err, want) {
				t.Errorf("%s, change %d: %v", want, i, err)
			}
		}
	}
}

// What a cut alone needs is the cut, its parts and the tail that no other cut names; a name
// that is none, or that is taken, is refused.
func TestOnlyOf(t *testing.T) {
	o := full(t, ours, true)
	b := impatient(o)
	only := func(name string, tail []byte) {
		t.Helper()
		var want Amount
		for object, size := range all(t, o) {
			if p := parse(object); (p.kind == isCut || p.kind == isCutPart) && p.id == name || tail != nil && object == (Ref{SHA256: sha256.Sum256(tail)}).name() {
				want.Files, want.Bytes = want.Files+1, want.Bytes+size
			}
		}
		if got, err := b.OnlyOf(t.Context(), name); err != nil || got != want || want.Files < partitions+1 {
			t.Errorf("of %s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	only("nightly", []byte("tail"))
	if _, err := cut(t.Context(), b, "weekly", []byte("tail")); err != nil {
		t.Fatal(err)
	}
	only("nightly", nil)
	only("weekly", nil)
	c, err := b.Cut(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	taken, nameless := *c, *c
	nameless.Name = "../x"
	m, err := b.Manifest(t.Context(), 3, must(b.IDs(t.Context(), 3))[0])
	if err != nil {
		t.Fatal(err)
	}
	before := all(t, o)
	for what, err := range map[string]error{
		"there is a cut nightly, at its end":   b.WriteCut(t.Context(), &taken),
		"there is a cut nightly, at its parts": b.WriteCutParts(t.Context(), "nightly", nil),
		"../x, at its end":                     b.WriteCut(t.Context(), &nameless),
		"../x, at its parts":                   b.WriteCutParts(t.Context(), "../x", nil),
		"../x, removed":                        b.RemoveCut(t.Context(), "../x"),
		"write a part of the cut next":         b.WriteCutParts(t.Context(), "next", []*CutPart{{Partition: 3, Backup: m.ID, To: Offsets{m.Applied.Content - 1, 0}}}),
		"write the cut next":                   b.WriteCut(t.Context(), &Cut{Name: "next"}),
	} {
		says, _, _ := strings.Cut(what, ",")
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !maps.Equal(all(t, o), before) {
		t.Error("what is refused leaves something")
	}
}
