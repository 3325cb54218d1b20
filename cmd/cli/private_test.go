//go:build unix

package cli

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// Nothing that a node writes can be read by other users of the machine, whatever
// the umask that it was started with: its store, what it keeps of the cluster, its
// audit log and its backups. What a version of before left open is closed.
func TestWhatANodeWritesIsPrivate(t *testing.T) {
	clitest.StartsProcesses(t)
	ctx, failed := context.WithCancelCause(clitest.Bounded(t))
	kafkaAt, etcdAt := neighbours(t, ctx, "private-")
	data, bucket, admin := t.TempDir(), t.TempDir(), clitest.FreeAddr(t)
	before := filepath.Join(data, "differs") // as it was made before
	if err := os.Mkdir(before, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(before, 0o755); err != nil {
		t.Fatal(err)
	}
	acts := filepath.Join(data, "audit.ndjson")
	file := clitest.WriteConfig(t, "node-1", "id: node-1\ndata: %s\naudit: %s\nbackup: {to: %q, every: 1s}\nbrokers: [%q]\ntopic_prefix: private-\netcd: [%q]\nlisten: %q\nadmin: %q\n", data, acts, "file://"+bucket, kafkaAt, etcdAt, clitest.FreeAddr(t), admin)
	was := syscall.Umask(0) // nothing is closed by how it is started
	node := start(t, failed, "node-1", "indexnode", "--config", file)
	syscall.Umask(was)
	clitest.WaitFor(ctx, t, "the node to be ready", func() bool { return clitest.SaysReady(admin) == "ok\n" })
	clitest.WaitFor(ctx, t, "something to be backed up", func() bool {
		all, _ := os.ReadDir(bucket)
		return len(all) > 0
	})
	node.end()
	files := 0
	for _, dir := range []string{data, bucket} {
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == dir { // that one is the test's
				return err
			}
			files++
			info, err := d.Info()
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s is %v", path, info.Mode())
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	if files < 10 {
		t.Errorf("it wrote %d files", files)
	}
}

// A file of a secret that every user of the machine can read is told by config
// check, by the role at its start, and by doctor; one that only some can read is
// not, by its mode or by that of its directory.
func TestSecretsThatAllCanReadAreTold(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "password")
	if err := os.WriteFile(secret, []byte("hush"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, above os.FileMode
		told        bool
	}{{0o644, 0o755, true}, {0o640, 0o755, false}, {0o600, 0o755, false}, {0o644, 0o750, false}} {
		for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) { // those of tests are closed
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(secret, c.file); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, c.above); err != nil {
			t.Fatal(err)
		}
		role := clitest.Written(t, enough["broker"]+"connect: {etcd: {username: me, password_file: "+secret+"}}\n")
		want := "connect.etcd.password_file: every user of this machine can read " + secret + "; chmod o= " + secret
		text, err := said(t, "config", "check", role)
		if err != nil || strings.Contains(text, want) != c.told {
			t.Errorf("%o in %o: %v\n%s", c.file, c.above, err, text)
		}
		if !c.told {
			continue
		}
		text, err = said(t, "doctor", "--etcd-username", "me", "--etcd-password-file", secret, "--brokers", "127.0.0.1:1", "--etcd", "127.0.0.1:1", "--grpc", "127.0.0.1:1")
		if err == nil || !strings.Contains(text, want) {
			t.Errorf("doctor of %o in %o: %v\n%s", c.file, c.above, err, text)
		}
	}
	// What stands in the file of a role itself is told as well.
	role := clitest.Written(t, enough["broker"]+"connect: {etcd: {username: me, password: hush}}\n")
	for path := role; path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := said(t, "config", "check", role); err != nil || !strings.Contains(text, "connect.etcd.password: every user of this machine can read "+role) {
		t.Errorf("%v\n%s", err, text)
	}
}
