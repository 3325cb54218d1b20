package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// backedUp is a cluster of one node that backs up to a directory.
type backedUp struct {
	*testing.T
	ctx    context.Context
	dir    string
	bucket string // its URL
	c      *minicluster.Cluster
	stop   func() error // ends the one that was started last, once
}

// newBackedUp starts one with the sample in it, and waits until all of it is
// backed up.
func newBackedUp(t *testing.T) *backedUp {
	t.Helper()
	ctx := clitest.Bounded(t)
	b := &backedUp{T: t, ctx: ctx, dir: t.TempDir()}
	b.bucket = "file://" + filepath.Join(b.dir, "bucket")
	b.check(os.Mkdir(filepath.Join(b.dir, "bucket"), 0o755))
	b.c = b.start(filepath.Join(b.dir, "cluster"), nil)
	_, err := b.c.Produce(ctx, b.c.ContentTopic(), schemas.Activity(), sampleRecords())
	b.check(err)
	b.check(b.c.WaitIndexed(ctx))
	b.await()
	return b
}

// start starts a cluster whose node backs up all the time.
func (b *backedUp) start(dir string, change func(*minicluster.Config)) *minicluster.Cluster {
	b.Helper()
	cfg := minicluster.Config{Dir: dir, Nodes: 1, Node: func(n *indexnode.Config) {
		n.Backup = backups.Config{To: b.bucket, Every: 200 * time.Millisecond, Keep: 1000, MiBPerSecond: -1, Drill: -1}
	}}
	if change != nil {
		change(&cfg)
	}
	b.check(os.MkdirAll(dir, 0o755))
	c, err := minicluster.Start(b.ctx, cfg)
	b.check(err)
	b.stop = sync.OnceValue(c.Close)
	stop := b.stop
	b.Cleanup(func() { _ = stop() })
	b.check(c.WaitReady(b.ctx))
	return c
}

// open opens the bucket.
func (b *backedUp) open() *backup.Bucket {
	b.Helper()
	bucket, err := backup.Open(b.ctx, b.bucket, backup.Options{})
	b.check(err)
	b.Cleanup(func() { bucket.Close() })
	return bucket
}

// await waits until the newest backups have everything that is applied, and
// returns them.
func (b *backedUp) await() (newest map[millrace.Partition]*backup.Manifest) {
	b.Helper()
	bucket := b.open()
	clitest.WaitFor(b.ctx, b.T, "everything to be backed up", func() bool {
		var err error
		if newest, err = bucket.Newest(b.ctx, func(d *backup.Damage) { b.Error(d) }); err != nil {
			return false // nobody's yet
		}
		for p := range partition.All() {
			at := b.c.Nodes[0].Applied(p)
			if m := newest[p]; m == nil || max(0, m.Applied.Content) < at[0] || max(0, m.Applied.Features) < at[1] {
				return false
			}
		}
		return true
	})
	return newest
}

func (b *backedUp) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// run runs a backup command, which must print what a pattern matches.
func (b *backedUp) run(want string, args ...string) string {
	b.Helper()
	out, err := execute(b.ctx, append([]string{"backup", "--from", b.bucket}, args...)...)
	if err != nil || !regexp.MustCompile(want).MatchString(out) {
		b.Fatalf("backup %v: %v, and printed\n%s\nwhich %q does not match", args, err, out, want)
	}
	return out
}

// refuse runs a backup command, which must fail with an error that has words.
func (b *backedUp) refuse(want string, args ...string) string {
	b.Helper()
	out, err := execute(b.ctx, append([]string{"backup", "--from", b.bucket}, args...)...)
	if err == nil || !strings.Contains(err.Error(), want) {
		b.Fatalf("backup %v: %v, and not %q; it printed\n%s", args, err, want, out)
	}
	return out
}

// stored compares a data directory with backups.
func (b *backedUp) stored(data string, want map[millrace.Partition]*backup.Manifest) {
	b.Helper()
	s, err := store.Open(filepath.Join(data, "store"), store.Options{})
	b.check(err)
	defer s.Close()
	for p := range partition.All() {
		m := want[p]
		if m == nil {
			if at := s.Applied(p); at.Content > 0 {
				b.Errorf("partition %d is at %+v, and was not to be restored", p, at)
			}
			continue
		}
		if at := s.Applied(p); at != store.Offsets(m.Applied) || s.Digest(p) != store.Digest(m.Digest) {
			b.Errorf("partition %d is at %+v, %x; the backup at %+v, %x", p, at, s.Digest(p), m.Applied, m.Digest)
		}
	}
}

// post brings a new post of a member into the cluster.
func (b *backedUp) post(id string) {
	b.Helper()
	line := fmt.Appendf(nil, `{"id":%q,"actor":%q,"verb":"post","created_at":%q}`, id, oneMember, time.Now().UTC().Format(time.RFC3339))
	_, err := b.c.Produce(b.ctx, b.c.ContentTopic(), schemas.Activity(), func(yield func([]byte, error) bool) { yield(line, nil) })
	b.check(err)
	b.check(b.c.WaitIndexed(b.ctx))
}

// some are partitions that are restored as a whole: restoring all takes as many
// syncs of the disk as there are files. That of oneMember is among them.
var some = fmt.Sprintf("0-9,%d", partition.Of(oneMember))

// Every command does on a cluster's backups what its help says.
func TestBackupCommands(t *testing.T) {
	t.Parallel()
	if testing.Short() { // what the commands share between goroutines is tested where it is
		t.Skip("restores all partitions again and again")
	}
	b := newBackedUp(t)
	if _, err := execute(b.ctx, "backup", "status"); err == nil || !strings.Contains(err.Error(), "--from") {
		t.Errorf("without a bucket: %v", err)
	}
	empty := "file://" + t.TempDir()
	if _, err := execute(b.ctx, "backup", "status", "--from", empty); err == nil || !strings.Contains(err.Error(), "nobody has backed up") {
		t.Errorf("an empty bucket: %v", err)
	}
	b.run(`720 of 720 have a backup(?s:.*)all is well`, "status")
	b.run(`"ok":true.*"partitions":720`, "status", "-o", "json")
	b.run(`(?m)^719 +1? `, "list")
	b.refuse("not well", "status", "--max-age", "1ns")
	b.run("all is well", "status", "--max-age", "1ns", "--brokers", b.c.Kafka) // they have all that the log has
	b.refuse("no form of output", "status", "-o", "yaml")
	p := partition.Of(oneMember)
	before := b.await()
	b.run(fmt.Sprintf(`(?m)^%d +%s *$`, p, before[p].ID), "list", "--partition", fmt.Sprint(p))
	b.run(`(?s)backup +`+before[p].ID+`.*SHA256`, "show", fmt.Sprint(p), "latest")
	b.refuse("is no partition", "show", "720", "latest")
	for _, depth := range []string{"files", "meta", "open"} {
		b.run("0 damaged; whole at this depth are .* of 720 partitions, and 0 cuts\nnot looked at: .*whether a store takes", "verify", "--depth", depth)
	}
	b.run("0 damaged; restorable are 11 backups of 11 partitions, and 0 cuts\nnot looked at: ", "verify", "--depth", "restore", "--partitions", some)
	b.refuse("is no depth", "verify", "--depth", "deep")
	b.run(fmt.Sprintf("partition %d, .*restored", p), "drill", "--partitions", fmt.Sprint(p), "--scratch", filepath.Join(b.dir, "scratch"))
	b.run(fmt.Sprintf("last drill +partition %d", p), "status")
	b.run("healed +none", "status")
	b.check(b.open().WriteHealing(b.ctx, &backup.Healing{Time: millrace.TimeOf(time.Now()), Node: "node-1", Partition: 7, Damage: "a flipped bit", From: "x"}))
	b.run("healed +partition 7 of node-1, .*a flipped bit", "status")
	b.testCuts(before)
	b.testLook(before)
	b.testDamage(p)
	would := b.run("would remove [1-9][0-9]* backups", "expire", "--keep", "1")
	removed := b.run("removed [1-9][0-9]* backups", "expire", "--keep", "1", "--apply", "--yes")
	if what, _, _ := strings.Cut(strings.TrimPrefix(would, "would remove "), "\n"); !strings.Contains(removed, "\nremoved "+what+"\n") {
		b.Errorf("it said %q, and %q then", would, removed)
	}
	b.run(`(?s)`+regexp.QuoteMeta(clusters.Who())+` +cut +cut one .* cut-remove +cut two .* restore .* expire +all partitions`, "acts")
	if out := b.refuse("would leave none", "expire", "--keep", "0"); strings.Contains(out, "removed") {
		b.Errorf("it is refused, and prints %s", out)
	}
	b.testRefusals()
}

// testRefusals asks for what cannot be done, and gets the way out.
func (b *backedUp) testRefusals() {
	b.Helper()
	data := filepath.Join(b.dir, "refused")
	b.refuse("there is no cut tomorrow; millrace backup cuts names them; a time is written as", "restore", "--to", "tomorrow", "--data", data)
	b.refuse("is in the future", "restore", "--to", "2999-01-01T00:00:00Z", "--data", data)
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		b.Errorf("what was refused left a directory: %v", err)
	}
	b.refuse("is no name of a cut", "cut", "--name", "bad name", "--brokers", "127.0.0.1:1")
	b.refuse("cannot be made", "drill", "--scratch", filepath.Join(b.dir, "not", "there"))
	b.refuse("not well", "status", "--max-age", "1ns", "--brokers", "127.0.0.1:1")
}

// testCuts takes a cut, and restores it and the newest backups.
func (b *backedUp) testCuts(before map[millrace.Partition]*backup.Manifest) {
	b.Helper()
	b.refuse("--brokers", "cut", "--name", "one")
	b.refuse("choose another name", "cut", "--name", "latest", "--brokers", b.c.Kafka)
	b.run("cut one of 20", "cut", "--name", "one", "--brokers", b.c.Kafka)
	b.refuse("there is a cut one", "cut", "--name", "one", "--brokers", b.c.Kafka)
	b.run("(?m)^one +", "cuts")
	b.run(`(?m)^5 +\S+ +one$`, "list", "--partition", "5")
	clitest.JSON(b.T, "backup list", b.run(`{"partition":5,"backup":"\S+","cuts":\["one"\]}`, "list", "--partition", "5", "-o", "json"))
	clitest.JSON(b.T, "backup cuts", b.run(`^\[{.*"name":"one"`, "cuts", "-o", "json"))
	b.run(`^{.*"name":"two".*}\n$`, "cut", "--name", "two", "--brokers", b.c.Kafka, "-o", "json")
	b.run("with it go [1-9][0-9]* files of .* that only it needs", "cut-remove", "two")
	b.run("(?m)^two +", "cuts")
	torn := filepath.Join(b.dir, "bucket", "cuts", "torn.json")
	b.check(os.WriteFile(torn, []byte("{"), 0o600))
	if out := b.refuse("torn", "cuts"); !strings.Contains(out, "\none ") || !strings.Contains(out, "\ntwo ") {
		b.Errorf("beside a torn cut cuts shows %s", out)
	}
	b.check(os.Remove(torn))
	b.run("the cut two is removed", "cut-remove", "two", "--apply", "--yes")
	b.post("post:after-the-cut")
	now := b.await()
	data := filepath.Join(b.dir, "one")
	b.refuse("no state to go back to", "restore", "--data", data)
	b.run("11 partitions are as of the cut one", "restore", "--to", "one", "--data", data, "--partitions", some)
	b.refuse("has a store", "restore", "--to", "one", "--data", data)
	set, err := topology.ParseSet(some)
	b.check(err)
	maps.DeleteFunc(before, func(p millrace.Partition, _ *backup.Manifest) bool { return !set.Has(p) })
	b.stored(data, before)
	few := filepath.Join(b.dir, "few")
	b.run("3 partitions are as of the newest backups", "restore", "--to", "latest", "--data", few, "--partitions", "5,100-101")
	b.stored(few, map[millrace.Partition]*backup.Manifest{5: now[5], 100: now[100], 101: now[101]})
	b.refuse("name its Kafka by --brokers", "restore", "--to", "2026-01-01T00:00:00Z", "--data", filepath.Join(b.dir, "then"))
	b.run("0 damaged; .*and 1 cuts", "verify", "--depth", "restore", "--partitions", some)
	b.run("the cut one is removed", "cut-remove", "one", "--apply", "--yes")
	b.refuse("no cut one", "cut-remove", "one")
}

// testLook compares backups and looks at a timeline as it was, and as it is.
func (b *backedUp) testLook(before map[millrace.Partition]*backup.Manifest) {
	b.Helper()
	p := partition.Of(oneMember)
	old := before[p].ID
	b.run(`(?s)offsets +timeline \+[1-9].*post +new +0 +1 `, "diff", fmt.Sprint(p), old, "latest", "--rows")
	b.run(`(?s)offsets +timeline \+[1-9]`, "diff", fmt.Sprint(p), old, "latest")
	clitest.JSON(b.T, "backup diff", b.run(`"records":1`, "diff", fmt.Sprint(p), old, "latest", "--rows", "-o", "json"))
	clitest.JSON(b.T, "backup show", b.run(`"sha256":"`, "show", fmt.Sprint(p), "latest", "-o", "json"))
	file := filepath.Join(b.dir, "posts.ndjson")
	timeline := []string{"restore", "--to", "latest", "--entity", string(oneMember), "--type", "post"}
	b.refuse("entity", "restore", "--to", "latest")
	b.refuse("it has ", "restore", "--to", "latest", "--entity", string(oneMember), "--type", "a/type", "--out", "-")
	b.refuse("has no records then", "restore", "--to", "latest", "--entity", "nobody", "--type", "post", "--out", "-")
	b.refuse("name a file", timeline...)
	b.run("records of member:9/post as of the newest backups", append(timeline, "--out", file)...)
	b.refuse("is there already", append(timeline, "--out", file)...)
	text, err := os.ReadFile(file)
	b.check(err)
	var first struct {
		ID     string
		Record map[string]any
	}
	b.check(json.NewDecoder(bytes.NewReader(text)).Decode(&first))
	if first.ID != "post:after-the-cut" || first.Record["actor"] != string(oneMember) {
		b.Errorf("the newest record is %+v", first)
	}
	posts := 0
	for line := range sample.Records() {
		if bytes.Contains(line, []byte(`"verb":"post"`)) && bytes.Contains(line, fmt.Appendf(nil, `"actor":%q`, oneMember)) {
			posts++
		}
	}
	if n := bytes.Count(text, []byte("\n")); posts == 0 || n != posts+1 {
		b.Errorf("%d records; the sample has %d, and one came", n, posts)
	}
}

// testDamage flips a bit of a file: verify, drill and restore say the same. A
// restore of the newest backups takes an older one, and fails where none is
// whole.
func (b *backedUp) testDamage(p millrace.Partition) {
	b.Helper()
	m := b.await()[p]
	hash := m.Files[0].SHA256.String()
	b.flip(hash)
	b.run("0 damaged", "verify", "--depth", "files")
	for _, depth := range []string{"open", "restore"} {
		out := b.refuse("1 objects are damaged", "verify", "--depth", depth, "--partitions", some)
		if !strings.Contains(out, hash) {
			b.Errorf("verify --depth %s: %s", depth, out)
		}
	}
	b.refuse("cannot be restored", "drill", "--partitions", fmt.Sprint(p))
	b.refuse("not well", "status")
	restore := func(name string) []string {
		return []string{"restore", "--to", "latest", "--data", filepath.Join(b.dir, name), "--partitions", fmt.Sprint(p)}
	}
	b.run(fmt.Sprintf("1 partitions are(?s:.*)partition %d is of the older backup 20", p), restore("older")...)
	flipped := map[string]bool{hash: true}
	for m, err := range b.open().Manifests(b.ctx, p, time.Time{}, func(d *backup.Damage) { b.Error(d) }) {
		b.check(err)
		if first := m.Files[0].SHA256.String(); !flipped[first] {
			flipped[first] = true
			b.flip(first)
		}
	}
	b.refuse("bytes have another SHA-256", restore("damaged")...)
	if _, err := os.Stat(filepath.Join(b.dir, "damaged", "store")); !os.IsNotExist(err) {
		b.Errorf("a restore that failed left a store: %v", err)
	}
	for hash := range flipped {
		b.flip(hash)
	}
	b.run("1 partitions are", restore("damaged")...)
	b.run("restored", "drill", "--partitions", fmt.Sprint(p))
}

// flip flips a bit of a file in the bucket.
func (b *backedUp) flip(hash string) {
	b.Helper()
	file := filepath.Join(b.dir, "bucket", "files", hash[:2], hash)
	text, err := os.ReadFile(file)
	b.check(err)
	text[len(text)/2] ^= 1
	b.check(os.Chmod(file, 0o644))
	b.check(os.WriteFile(file, text, 0o644))
}

// A cluster takes over the bucket of one that is lost, when somebody says its
// name.
func TestBackupAdopt(t *testing.T) {
	t.Parallel()
	ctx := clitest.Bounded(t)
	etcd, err := minicluster.StartEtcd(ctx, t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	url := "file://" + t.TempDir()
	b, err := backup.Open(ctx, url, backup.Options{})
	if err == nil {
		err = b.Claim(ctx, backup.Identity{Name: "lost", ID: "1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, step := range []struct{ name, out, err string }{
		{name: "prod", err: "the bucket is that of lost (1)"},
		{name: "lost", out: "the bucket of lost (1) is now that of prod ("},
		{name: "lost", out: "already that of prod ("},
	} {
		out, err := execute(ctx, "backup", "adopt", "--from", url, "--etcd", etcd.Addr(), "--cluster", "prod", step.name, "--apply", "--yes")
		if (err == nil) != (step.err == "") || err != nil && !strings.Contains(err.Error(), step.err) || !strings.Contains(out, step.out) {
			t.Errorf("adopt %s: %q, %v", step.name, out, err)
		}
	}
}

// oneMember is one of the sample, with a good number of records.
const oneMember millrace.Entity = "member:9"

func sampleRecords() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for line := range sample.Records() {
			if !yield(line, nil) {
				return
			}
		}
	}
}
