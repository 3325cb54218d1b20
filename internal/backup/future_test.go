package backup

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

// A backup that is dated ahead of now, by its name or within, is damage: it is
// told, nobody takes it for the newest, and the next backup is not named after
// it.
func TestABackupOfTheFutureIsDamage(t *testing.T) {
	b := claimed(t, directory(t, t.TempDir()))
	m, err := back(t.Context(), b, 5, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	far := time.Date(2999, 12, 31, 23, 59, 59, 0, time.UTC)
	inside := *m
	inside.ID, inside.Time = newID(time.Now(), "node-1", m.ID), millrace.TimeOf(far)
	named := *m
	named.ID = newID(far, "node-1", "")
	for _, f := range []*Manifest{&inside, &named} {
		if err := b.createObject(t.Context(), manifestName(5, f.ID), f); err != nil {
			t.Fatal(err)
		}
		var damage *Damage
		if _, err := b.Manifest(t.Context(), 5, f.ID); !errors.As(err, &damage) || damage.Kind != Future {
			t.Errorf("%s is read: %v", f.ID, err)
		}
	}
	told := 0
	count := func(d *Damage) {
		if d.Kind == Future {
			told++
		}
	}
	if newest, err := b.Newest(t.Context(), count); err != nil || newest[5] == nil || newest[5].ID != m.ID || told != 2 {
		t.Errorf("the newest is %v, told are %d, %v", newest[5], told, err)
	}
	told = 0
	for by, err := range b.Manifests(t.Context(), 5, time.Time{}, count) {
		if err != nil || by.ID != m.ID {
			t.Errorf("%v is read, %v", by, err)
		}
	}
	if told != 2 {
		t.Errorf("told are %d", told)
	}
	told = 0
	if good, err := b.Verify(t.Context(), DepthFiles, count); err != nil || told != 2 || len(good.Backups[5]) != 1 {
		t.Errorf("verify: %v, told are %d, %v", good, told, err)
	}
	next, err := back(t.Context(), b, 5, []byte("y"))
	if err != nil || ahead(next.ID) {
		t.Errorf("the next is %v, %v", next, err)
	}
}

// A cut that is not there is no damage, and the error says which there are.
func TestACutThatIsNotThere(t *testing.T) {
	b := claimed(t, directory(t, t.TempDir()))
	_, err := b.Cut(t.Context(), "tomorrow")
	var damage *Damage
	var told *millrace.Error
	if errors.As(err, &damage) || !errors.As(err, &told) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "there is no cut tomorrow; millrace backup cuts") {
		t.Errorf("%v", err)
	}
}

// A manifest is refused that no store can have written: without files and with
// records, with one file many times, with other files than sstables.
func TestManifestsThatNoStoreWrites(t *testing.T) {
	b := claimed(t, directory(t, t.TempDir()))
	m, err := back(t.Context(), b, 5, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Manifest){
		"files: there are none": func(m *Manifest) { m.Files, m.Applied = nil, Offsets{2, 0} },
		"stands twice":          func(m *Manifest) { m.Files = append(m.Files, File{Name: "999999.sst", Ref: m.Files[0].Ref}) },
		"no name of an sstable": func(m *Manifest) { m.Files[0].Name = "OPTIONS-000003" },
	} {
		changed := *m
		changed.Files = append([]File{}, m.Files...)
		change(&changed)
		if err := changed.validate(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
