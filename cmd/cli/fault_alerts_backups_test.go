//go:build linux

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

const diskBytes = 256 << 20

// TestFaultAlertsOfBackups does what TestFaultAlerts does with a backup node, whose disk is
// small, and a directory of backups.
func TestFaultAlertsOfBackups(t *testing.T) {
	bucket, aside, disk := filepath.Join(t.TempDir(), "bucket"), filepath.Join(t.TempDir(), "aside"), smallDisk(t, diskBytes)
	filler, data := filepath.Join(disk, "filler"), filepath.Join(disk, "data")
	var keeper *process
	var admin string           // its port
	was := map[string][]byte{} // files of the backups
	w := startWatched(t, watchedConfig{nodes: 2, coordinator: "grace: 1h\n"}, func(w *watched) string {
		rewrite(t, bucket, "no directory")
		admin = clitest.FreeAddr(t)
		keeper = start(t, w.failed, "keeper", "indexnode", "--config", clitest.WriteConfig(t, "keeper",
			"id: keeper\ndata: %s\nbrokers: [%q]\ntopic_prefix: %s\netcd: [%q]\nlisten: %q\nadmin: %q\nserves: false\npartitions: 0-99\nmin_free_mib: 32\nbackup: {to: %q, every: 5s, drill: 5s}\n",
			data, w.kafka, w.prefix, w.etcd.Addr(), clitest.FreeAddr(t), admin, "file://"+bucket))
		return scrapes("millrace-keeper", admin)
	})
	anew := func() { // as with another disk
		keeper.kill()
		must(t, os.RemoveAll(data))
		keeper.restart()
	}
	whole := func() bool { return metric(w.ctx, admin, "millrace_backup_behind_seconds") > 0 } // it has something to back up
	spoil := func() {
		must(t, filepath.WalkDir(filepath.Join(bucket, "files"), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			was[path] = text
			return errors.Join(err, os.WriteFile(path, make([]byte, len(text)), 0o600))
		}))
	}
	repair := func() {
		for path, text := range was {
			must(t, os.WriteFile(path, text, 0o600))
		}
	}
	w.breaks(
		alertFault{
			"the place of backups is no directory", fires{"MillraceBackupFails", "MillraceBackupOld"}, []string{"MillraceBackupAway"},
			func() {}, func() { must(t, os.Remove(bucket)); must(t, os.Mkdir(bucket, 0o700)) },
		},
		alertFault{"files of backups hold zeros", fires{"MillraceBackupDrillFailed"}, nil, spoil, repair},
		alertFault{
			"a node is to be restored from files that hold zeros", fires{"MillraceRestoreFails"}, []string{"MillraceBackupDrillFailed"},
			func() { spoil(); anew() }, func() { repair(); w.until("it to be whole", whole) },
		},
		alertFault{
			"a node is to be restored and the place of backups is away", fires{"MillraceBackupAway"}, []string{"MillraceReplicasQuarantined"},
			func() {
				w.trim(func(p int32) bool { return p < 100 })
				must(t, os.Rename(bucket, aside))
				rewrite(t, bucket, "no directory")
				anew()
			},
			func() {
				must(t, os.Remove(bucket))
				must(t, os.Rename(aside, bucket))
				w.until("it to be whole", whole)
			},
		},
		alertFault{
			"a disk is full", fires{"MillraceDiskFull"}, nil,
			func() { must(t, os.WriteFile(filler, make([]byte, diskBytes-31<<20), 0o600)) }, func() { must(t, os.Remove(filler)) },
		},
	)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// smallDisk returns a directory on a disk of its own.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		if os.Geteuid() != 0 {
			t.Skip("mounting a small disk needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
