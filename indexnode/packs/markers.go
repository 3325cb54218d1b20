package packs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// mostDeaths is how many times in a row a node may die while it admits a version, before it
// stops trying that version by itself. A single death may have another cause, such as a
// restart during a push.
const mostDeaths = 2

// markers are files in the node's directory, one for each version whose admission has begun
// and not ended. The process removes a file when the admission ends. A file that is there
// after a restart says that the process died during the admission, perhaps because of it.
// Without markers, a pack that kills the process would kill it at each restart.
type markers struct{ dir string }

// marker is what the file of a version says.
type marker struct {
	Deaths   int       `json:"deaths"`             // how often the process died while it admitted the version; an admission under way counts
	Last     time.Time `json:"last"`               // when the last of these admissions began
	Released time.Time `json:"released,omitempty"` // the last release that let the version be tried
}

func (m markers) file(v artefacts.Version) string { return filepath.Join(m.dir, v.Sum) }

// read returns a version's marker; the zero marker if there is none. A file that cannot be
// read counts as one death.
func (m markers) read(v artefacts.Version) (k marker) {
	b, err := os.ReadFile(m.file(v))
	if errors.Is(err, os.ErrNotExist) {
		return k
	}
	if err != nil || json.Unmarshal(b, &k) != nil {
		return marker{Deaths: 1}
	}
	return k
}

// begin writes the marker of a version whose admission begins, with one more death than k
// has. When it returns nil, the marker is synced to disk.
func (m markers) begin(v artefacts.Version, k marker) error {
	k.Deaths, k.Last = k.Deaths+1, time.Now().UTC().Truncate(time.Second)
	b, err := json.Marshal(k)
	if err == nil {
		err = os.MkdirAll(m.dir, 0o700)
	}
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(m.dir, "new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), m.file(v))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(m.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// end removes a version's marker.
func (m markers) end(v artefacts.Version) error {
	err := os.Remove(m.file(v))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// keep removes the markers of versions that are not among the published versions, there, and
// half-written files that a death of the process left behind.
func (m markers) keep(there []artefacts.Version) {
	files, _ := os.ReadDir(m.dir) // the directory mostly does not exist
	sums := map[string]bool{}
	for _, v := range there {
		sums[v.Sum] = true
	}
	for _, f := range files {
		if !sums[f.Name()] {
			_ = os.Remove(filepath.Join(m.dir, f.Name()))
		}
	}
}

// deadly returns the refusal of a version that killed the node.
func (k marker) deadly(node millrace.NodeID, v artefacts.Version) error {
	return fmt.Errorf("%s died %d times in a row while it admitted it, the last time after %s, and does not try again by itself: its log, or the machine's, says what killed it; drop the version and push one that takes less, or have it tried again with millrace model release %s %s",
		node, k.Deaths, k.Last.Format(time.RFC3339), v.Name, v.Version)
}
