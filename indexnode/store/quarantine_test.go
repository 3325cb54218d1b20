package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A quarantine for a cause that the store cannot see is on disk once Quarantine
// has returned: a crash right after it does not end it.
func TestAQuarantineIsOnDiskAtOnce(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openMem(t, Options{FS: fs})
	apply(t, s, mendBatch(3, 0, 4))
	if err := s.Quarantine(3, errors.New("somebody looks into it")); err != nil {
		t.Fatal(err)
	}
	crashed := openMem(t, Options{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
	if err := crashed.Quarantined(3); err == nil || !strings.Contains(err.Error(), "somebody looks into it") {
		t.Errorf("after a crash it is quarantined for %v", err)
	}
	if err := errors.Join(s.Close(), crashed.Close()); err != nil {
		t.Fatal(err)
	}
}

// One that cannot be put on disk is no success, and counts until a restart.
func TestAQuarantineThatIsNotRememberedIsToldSo(t *testing.T) {
	d := &smallDisk{MemFS: vfs.NewMem()}
	d.size.Store(1 << 40)
	s := openMem(t, Options{FS: d.fs(), MinFreeBytes: 1 << 20})
	apply(t, s, mendBatch(3, 0, 4))
	d.taken.Store(d.size.Load())
	if err := s.Quarantine(3, errors.New("somebody looks into it")); !errors.Is(err, ErrDiskFull) {
		t.Errorf("on a full disk it says %v", err)
	}
	if s.Quarantined(3) == nil {
		t.Error("it is in use")
	}
	d.taken.Store(0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// The cause of a quarantine may change, on disk at once; what is in use stays so.
func TestTheCauseOfAQuarantineChanges(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openMem(t, Options{FS: fs})
	apply(t, s, mendBatch(3, 0, 4))
	if err := errors.Join(s.Quarantine(3, errors.New("somebody looks into it")), s.Requarantine(3, errors.New("it differs")), s.Requarantine(4, errors.New("it differs"))); err != nil {
		t.Fatal(err)
	}
	crashed := openMem(t, Options{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
	for when, of := range map[string]*Store{"at once": s, "after a crash": crashed} {
		if err := of.Quarantined(3); err == nil || !strings.Contains(err.Error(), "it differs") {
			t.Errorf("%s it is quarantined for %v", when, err)
		}
		if err := of.Quarantined(4); err != nil {
			t.Errorf("%s another is quarantined for %v", when, err)
		}
	}
	if err := errors.Join(s.Close(), crashed.Close()); err != nil {
		t.Fatal(err)
	}
}

// A restore that breaks off in its last step, however often, leaves the cause for
// which the partition was quarantined before: who restores it next goes by that.
func TestARestoreThatBreaksOffKeepsTheCause(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openMem(t, Options{FS: fs})
	apply(t, s, mendBatch(3, 0, 4))
	if err := s.Quarantine(3, errors.New("it differs from others")); err != nil {
		t.Fatal(err)
	}
	const want = "it was being restored: it differs from others"
	for range 2 {
		p := &s.parts[3]
		s.flushing.Lock()
		p.mu.Lock()
		err := s.mark([]*replacement{{p: p, was: p.bad, run: []string{"a table"}}})
		p.mu.Unlock()
		s.flushing.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		crashed := openMem(t, Options{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
		if err := crashed.Quarantined(3); !errors.Is(err, ErrCorrupt) || err.Error() != "store: partition 3 is quarantined: "+want {
			t.Errorf("after a crash it is quarantined for %v", err)
		}
		if err := errors.Join(s.Close(), crashed.Close()); err != nil {
			t.Fatal(err)
		}
		s = openMem(t, Options{FS: fs})
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
