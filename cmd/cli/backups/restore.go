package backups

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
)

// restoring is one run of backup restore.
type restoring struct {
	// The flags. entity and kind name the one timeline that is written to out;
	// without them the store in data is restored.
	to, data, partitions string
	entity, kind         string
	out, scratch         string
	log, groups          string
	kafka                *reach.KafkaFlags

	progress       *display.Teller
	cut            string    // the name of the cut in the flag to; "" if it names none
	at             time.Time // the time in the flag to; zero if it has none
	bucket         *backup.Bucket
	stdout, stderr io.Writer

	mu    sync.Mutex
	older map[millrace.Partition]string // ids of the backups that took the place of damaged ones; guarded by mu while it restores
}

func backupRestore(f *backupFlags) *cobra.Command {
	var r restoring
	c := &cobra.Command{
		Use:   "restore --to latest|CUT|TIME (--data DIR | --entity ENTITY --type TYPE --out FILE)",
		Short: "Bring back a node's data, or one timeline into a file for a look",
		Long: `With --data it makes the store of a node that does not run. The node goes on
from there by the log. It makes the store beside its place and moves it there in
the end: one that broke off goes on where it was, and one that fails leaves what
was there.

--to latest takes the newest backup of each partition, --to CUT one moment of
the whole cluster (millrace backup cut), and --to TIME a time in between, which
is reached through the log (--brokers). Where the backup that latest or a TIME
begins with is damaged, the one before it is taken, and told.

--log new is for when the log is gone: its topics were created anew, with the
backups' Kafka or another. The node then goes on at the beginning of the new
log, which gets the schemas of the backups. --group-offsets set has the
partitioners go on in the content topics where the cut is; print shows where.`,
		Example: `  millrace backup restore --from s3://bucket/prefix --to latest --data /var/lib/millrace
  millrace backup restore --from s3://bucket/prefix --to before-upgrade --data /tmp/then --partitions 0-99
  millrace backup restore --from s3://bucket/prefix --to 2026-11-22T11:45:00Z --brokers kafka-1:9092 --data /tmp/then
  millrace backup restore --from s3://bucket/prefix --to latest --entity member:9 --type post --out posts.ndjson
  millrace backup restore --from s3://bucket/prefix --to before-upgrade --data /var/lib/millrace \
    --log new --brokers kafka-2:9092 --group-offsets set`,
		Args: cobra.NoArgs,
	}
	r.kafka = reach.KafkaFlagsOf(c, "for a TIME and for --log new")
	fl := c.Flags()
	fl.StringVar(&r.to, "to", "", "latest, the name of a cut, or a time such as 2026-11-22T11:45:00Z")
	fl.StringVar(&r.data, "data", "", "the data directory of a node that does not run")
	fl.StringVar(&r.partitions, "partitions", "", "such as 0-3,7; left out: all")
	fl.StringVar(&r.entity, "entity", "", "one timeline of this entity, such as member:9")
	fl.StringVar(&r.kind, "type", "", "with --entity: the content type of the timeline, such as post")
	fl.StringVar(&r.out, "out", "", "a file for the timeline's records, a line of JSON each; - is standard output")
	fl.StringVar(&r.scratch, "scratch", "", "with --entity: a directory for the scratch store; left out: the system's for temporary files")
	fl.StringVar(&r.log, "log", "same", "same: the node goes on by the log that the backups are of; new: by one that was created anew")
	fl.StringVar(&r.groups, "group-offsets", "", "print or set what the groups of a cut had consumed")
	c.MarkFlagsMutuallyExclusive("data", "entity")
	c.MarkFlagsOneRequired("data", "entity")
	c.MarkFlagsRequiredTogether("entity", "type")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return f.use(c.Context(), func(b *backup.Bucket) error {
			r.bucket, r.stdout, r.stderr = b, c.OutOrStdout(), c.ErrOrStderr()
			r.progress = display.StartTeller(c.Context(), c.ErrOrStderr())
			defer r.progress.Close()
			return r.run(c.Context())
		})
	}
	return c
}

func (r *restoring) run(ctx context.Context) (err error) {
	if r.cut, r.at, err = targetOf(r.to); err != nil {
		return err
	}
	if err := r.validate(); err != nil {
		return err
	}
	cfg := backups.RestoreConfig{
		Bucket: r.bucket, To: backups.Target{Cut: r.cut, Time: r.at}, Data: r.data, NewLog: r.log == "new",
		Brokers: r.kafka.At(ctx), Topics: r.kafka.Topics(), Progress: r.progress.Progress, Log: slog.Default(),
	}
	if cfg.Partitions, err = partitionsFlag(r.partitions); err != nil {
		return err
	}
	if cfg.Store.Retention, err = retentionIn(ctx, r.bucket); err != nil {
		return err
	}
	cfg.Older = r.fellBack
	r.progress.Say("restoring")
	if r.entity != "" {
		err = r.writeTimeline(ctx, cfg)
	} else {
		err = r.restoreStore(ctx, cfg)
	}
	if err == nil {
		r.note(ctx, cfg)
	}
	return err
}

// note writes into the bucket's list of acts what was restored. If it cannot, for example
// because the bucket is read-only, it only prints that: the restore has succeeded.
func (r *restoring) note(ctx context.Context, cfg backups.RestoreConfig) {
	e := audit.Entry{Who: clusters.Who(), Act: "restore", On: r.data, Before: fmt.Sprint(cfg.To), After: fmt.Sprintf("%d partitions, by the %s log", cfg.Partitions.Len(), r.log)}
	if r.entity != "" {
		e.On, e.After = r.out, fmt.Sprintf("timeline %s/%s", r.entity, r.kind)
	}
	if err := r.bucket.WriteAct(ctx, e); err != nil {
		display.Printf(r.stderr, "what was restored is not in the bucket's acts: %v\n", err)
	}
}

// fellBack notes that a partition comes from the older backup instead, since a newer one is
// damaged. Several goroutines may call it at the same time.
func (r *restoring) fellBack(p millrace.Partition, instead *backup.Manifest, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.older == nil {
		r.older = map[millrace.Partition]string{}
	}
	r.older[p] = instead.ID
}

// tellOlder prints which partitions come from an older backup. It reads r.older without the
// lock: its callers have finished restoring.
func (r *restoring) tellOlder() {
	for _, p := range slices.Sorted(maps.Keys(r.older)) {
		display.Printf(r.stdout, "partition %d is of the older backup %s: a newer one is damaged (millrace backup verify)\n", p, r.older[p])
	}
}

// validate refuses flags that do not go together.
func (r *restoring) validate() error {
	bad := func(field, detail, wayOut string) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut}
	}
	switch {
	case r.log != "same" && r.log != "new":
		return bad("log", fmt.Sprintf("%q is no log", r.log), "say same or new")
	case r.log == "new" && len(r.kafka.Brokers) == 0:
		return bad("brokers", "nothing says where the new log is", "name its Kafka by --brokers")
	case r.log == "new" && r.entity != "":
		return bad("log", "a timeline for a look goes on by no log", "leave out --log")
	case r.groups != "" && r.groups != "print" && r.groups != "set":
		return bad("group-offsets", fmt.Sprintf("%q is neither print nor set", r.groups), "say one of them")
	case r.groups != "" && r.cut == "":
		return bad("group-offsets", "only a cut says what the groups had consumed", "restore a cut (millrace backup cuts), or reset the groups to a time before the restored state: records that come again change nothing")
	case r.groups == "set" && len(r.kafka.Brokers) == 0:
		return bad("brokers", "nothing says which Kafka has the groups", "name it by --brokers")
	case r.data == "" && (r.entity == "" || r.kind == ""):
		return bad("entity", "a timeline has an entity and a type", "name both by --entity and --type")
	case r.entity != "" && r.out == "":
		return bad("out", "nothing says where the timeline is to be written", "name a file, or - for standard output")
	}
	return nil
}

// restoreStore restores a node's store, and says what to do next.
func (r *restoring) restoreStore(ctx context.Context, cfg backups.RestoreConfig) error {
	began := time.Now()
	if cfg.NewLog {
		r.progress.Say("making the topics of the new log")
		if err := kafka.EnsureTopics(ctx, cfg.Brokers, cfg.Topics, nil); err != nil {
			return err
		}
		r.progress.Say("restoring")
	}
	n, err := backups.RestoreData(ctx, cfg)
	if err != nil {
		return err
	}
	s := r.progress.Now()
	display.Printf(r.stdout, "%d partitions are as of %s in %s: %s in %.1f s\n", n, cfg.To, r.data, backup.Bytes(s.Done), time.Since(began).Seconds())
	r.tellOlder()
	if r.groups != "" {
		if err := r.groupOffsets(ctx); err != nil {
			return err
		}
	}
	switch {
	case !cfg.NewLog:
		fmt.Fprintln(r.stdout, "Start the node: it goes on from there by the log.")
	case r.cut == "":
		fmt.Fprintln(r.stdout, "Before you start partitioners, set their group in the content topics to a time before the state that was restored; records that come again change nothing.")
	case r.groups != "set":
		fmt.Fprintln(r.stdout, "Before you start partitioners, set their group to where the cut is: --group-offsets set, or print and set it by hand.")
	}
	return nil
}

// groupWait is how long to wait until a consumer group has no members. Kafka keeps a member
// for a while after its process has ended.
const groupWait = 2 * time.Minute

// groupOffsets prints, or sets in Kafka, the offsets that consumer groups had at the cut.
func (r *restoring) groupOffsets(ctx context.Context) error {
	cut, err := r.bucket.Cut(ctx, r.cut)
	if err != nil {
		return err
	}
	if r.groups == "print" {
		return json.NewEncoder(r.stdout).Encode(cut.Groups)
	}
	r.progress.Say("waiting for the groups to be without members")
	limited, cancel := context.WithTimeout(ctx, groupWait)
	defer cancel()
	if err := groups.SetOffsets(limited, r.kafka.At(ctx), cut.Groups); err != nil {
		return err
	}
	for name, topics := range cut.Groups {
		display.Printf(r.stdout, "group %s goes on where the cut is, in %d topics\n", name, len(topics))
	}
	return nil
}

// writeTimeline writes the records of one timeline to a new file, or to standard output.
// After an error it removes the file.
func (r *restoring) writeTimeline(ctx context.Context, cfg backups.RestoreConfig) (err error) {
	if err := scratchFlag(r.scratch); err != nil {
		return err
	}
	t := millrace.Timeline{Entity: millrace.Entity(r.entity), Type: millrace.ContentType(r.kind)}
	cfg.Data = r.scratch
	w := r.stdout
	if r.out != "-" {
		f, err := os.OpenFile(r.out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "out", Detail: r.out + " is there already", WayOut: "name another file"}
		}
		if err != nil {
			return err
		}
		defer func() {
			if err = errors.Join(err, f.Close()); err != nil {
				err = errors.Join(err, os.Remove(r.out))
			}
		}()
		w = f
	}
	buf := bufio.NewWriter(w)
	n, err := backups.Timeline(ctx, cfg, t, buf)
	if err = errors.Join(err, buf.Flush()); err == nil && r.out != "-" {
		display.Printf(r.stdout, "%d records of %s as of %s are in %s\n", n, t, cfg.To, r.out)
		r.tellOlder()
	}
	return err
}

// retentionIn returns how long or how much nodes keep of each content type. It takes this
// from any backup that can be read: all nodes of a cluster have the same configuration. It
// returns nil if no backup can be read.
func retentionIn(ctx context.Context, b *backup.Bucket) (map[millrace.ContentType]store.Retention, error) {
	ids, err := b.AllIDs(ctx)
	if err != nil {
		return nil, err
	}
	for p, all := range ids {
		for _, id := range all {
			if m, err := b.Manifest(ctx, p, id); err == nil {
				return backups.RetentionOf(m), nil
			}
		}
	}
	return nil, nil // the restore itself reports what is wrong
}

func backupVerify(f *backupFlags) *cobra.Command {
	var output display.Form
	var depth, of, scratch string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Find all damage in the bucket; fails if there is any",
		Long: `Each depth finds what the one before it finds, and more:

  files    files that are missing or have another size
  meta     backups, cuts and registries of schemas that are torn, of another
           cluster, or do not fit each other
  open     every flipped bit of every file
  restore  whatever a restore would refuse: the newest backup of each partition
           that can be, and each part of each cut, is restored into a scratch
           store, a few partitions at a time, and digests and offsets are
           compared

It tells all damage and not the first alone, what is whole all the same, and
what it has not looked at: only what was restored is called restorable. What is
extra in the bucket is told too, and harms nothing.`,
		Example: `  millrace backup verify --from s3://bucket/prefix --depth meta
  millrace backup verify --from s3://bucket/prefix --depth restore --scratch /scratch`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			set, err := partitionsFlag(of)
			if err != nil {
				return err
			}
			return f.use(c.Context(), func(b *backup.Bucket) error {
				t := display.StartTeller(c.Context(), c.ErrOrStderr())
				t.Say("verifying")
				v, err := verifyBucket(c.Context(), b, depth, backups.VerifyConfig{Bucket: b, Partitions: set, Scratch: scratch, Progress: t.Progress, Log: slog.Default()})
				t.Close()
				if err != nil {
					return err
				}
				if err := output.Write(c.OutOrStdout(), v, v.write); err != nil {
					return err
				}
				if v.bad > 0 {
					return fmt.Errorf("%d objects are damaged", v.bad)
				}
				return nil
			})
		},
	}
	display.Flag(c, &output)
	c.Flags().StringVar(&depth, "depth", "open", "files, meta, open or restore")
	c.Flags().StringVar(&of, "partitions", "", "with --depth restore: restore these, such as 0-3,7; left out: all")
	c.Flags().StringVar(&scratch, "scratch", "", "with --depth restore: a directory for the scratch stores; left out: the system's for temporary files")
	return c
}

// unseen says for each depth what backup verify does not look at.
var unseen = map[string]string{
	"files":   "cuts, schemas, the bytes of files, and whether a store takes them",
	"meta":    "the bytes of files, and whether a store takes them",
	"open":    "whether a store takes the files: only --depth restore knows what is restorable",
	"restore": "other partitions, and older backups, beyond their bytes",
}

// verified is what backup verify found.
type verified struct {
	Depth  string           `json:"depth"`
	Damage []*backup.Damage `json:"damage"`
	// Whole has the backups and cuts in which this depth found no damage; nil at the
	// depth restore. Restored has those that were restored; nil at all other depths.
	Whole    *backup.Restorable `json:"whole,omitempty"`
	Restored *backup.Restorable `json:"restored,omitempty"`
	Unseen   string             `json:"not_looked_at"`
	bad      int                // how many entries of Damage are not of the kind [backup.Extra], which harms nothing
}

// verifyBucket verifies a bucket to a depth: files, meta, open or restore. cfg.Partitions
// counts only for restore.
func verifyBucket(ctx context.Context, b *backup.Bucket, depth string, cfg backups.VerifyConfig) (v *verified, err error) {
	v = &verified{Depth: depth, Damage: []*backup.Damage{}, Unseen: unseen[depth]}
	cfg.Report = func(d *backup.Damage) {
		v.Damage = append(v.Damage, d)
		if d.Kind != backup.Extra {
			v.bad++
		}
	}
	if err := scratchFlag(cfg.Scratch); err != nil {
		return nil, err
	}
	counted := b.Counted(cfg.Progress)
	switch depth {
	case "files":
		v.Whole, err = counted.Verify(ctx, backup.DepthFiles, cfg.Report)
	case "meta":
		v.Whole, err = counted.Verify(ctx, backup.DepthMeta, cfg.Report)
	case "open":
		v.Whole, err = counted.Verify(ctx, backup.DepthOpen, cfg.Report)
	case "restore":
		v.Restored, err = backups.Verify(ctx, cfg)
	default:
		err = &millrace.Error{Reason: millrace.ReasonInvalid, Field: "depth", Detail: fmt.Sprintf("%.40q is no depth", depth), WayOut: "say files, meta, open or restore"}
	}
	for _, found := range []*backup.Restorable{v.Whole, v.Restored} {
		if found != nil {
			found.Cuts = display.List(found.Cuts)
		}
	}
	return v, err
}

func (v *verified) write(w io.Writer) error {
	extra := 0
	for _, d := range v.Damage {
		if d.Kind == backup.Extra {
			extra++
			continue
		}
		display.Printf(w, "%s\t%s\t%s\n", d.Kind, d.Object, d.Detail)
	}
	if extra > 0 {
		display.Printf(w, "%d objects are extra and harm nothing: of backups at work, or what expiry removes, or not Millrace's (-o json names each)\n", extra)
	}
	what, found := "whole at this depth", v.Whole
	if v.Restored != nil {
		what, found = "restorable", v.Restored
	}
	n, partitions := 0, 0
	for _, ids := range found.Backups {
		n += len(ids)
		if len(ids) > 0 {
			partitions++
		}
	}
	display.Printf(w, "%d damaged; %s are %d backups of %d partitions, and %d cuts\nnot looked at: %s\n", v.bad, what, n, partitions, len(found.Cuts), v.Unseen)
	return nil
}

func backupDrill(f *backupFlags) *cobra.Command {
	var output display.Form
	var of, scratch string
	c := &cobra.Command{
		Use:   "drill",
		Short: "Restore a random partition into a scratch directory, compare it, and record the result",
		Long: `Restores the newest backup of a random partition into a scratch directory, reads
every row, compares digest and offsets, and records the result in the bucket.
Nodes do the same at intervals ("drill" of "backup" in their configuration).`,
		Example: `  millrace backup drill --from s3://bucket/prefix
  millrace backup drill --from s3://bucket/prefix --partitions 7 --scratch /scratch`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			set, err := partitionsFlag(of)
			if err != nil {
				return err
			}
			return f.use(c.Context(), func(b *backup.Bucket) error {
				if err := scratchFlag(scratch); err != nil {
					return err
				}
				t := display.StartTeller(c.Context(), c.ErrOrStderr())
				t.Say("restoring")
				d, err := backups.Drill(c.Context(), backups.DrillConfig{Bucket: b, Partitions: set, Node: millrace.NodeID(clusters.Who()), Scratch: scratch, Progress: t.Progress, Log: slog.Default()})
				t.Close()
				if err != nil {
					return err
				}
				err = output.Write(c.OutOrStdout(), d, func(w io.Writer) error {
					display.Printf(w, "%s\n", drillLine(d))
					return nil
				})
				if err == nil && d.Fault != "" {
					err = fmt.Errorf("the backup %s of partition %d cannot be restored", d.Backup, d.Partition)
				}
				return err
			})
		},
	}
	display.Flag(c, &output)
	c.Flags().StringVar(&of, "partitions", "", "one of these, such as 0-3,7; left out: any")
	c.Flags().StringVar(&scratch, "scratch", "", "a directory for the scratch store; left out: the system's for temporary files")
	return c
}

func backupCut(f *backupFlags) *cobra.Command {
	var output display.Form
	var name string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "cut",
		Short: "Name one moment of the whole cluster, to which it can be restored",
		Long: `Takes one moment of the whole log such that everything that came in is wholly
before or wholly after it, in all partitions, and puts into the bucket what
brings each partition there from its newest backup. Reads never wait; ingest
waits for at most a second at a time. Every partition needs a backup.`,
		Example: `  millrace backup cut --from s3://bucket/prefix --brokers kafka-1:9092 --name before-upgrade
  millrace backup cut --from s3://bucket/prefix --brokers kafka-1:9092     # named after the time`,
		Args: cobra.NoArgs,
	}
	k := reach.KafkaFlagsOf(c, "of the log")
	c.Flags().StringVar(&name, "name", "", "letters, digits, - and _; left out: the time, such as 20261122T114500Z")
	c.Flags().DurationVar(&wait, "wait", 10*time.Minute, "give up after this long")
	display.Flag(c, &output)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if len(k.Brokers) == 0 {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "brokers", Detail: "nothing says where the log is", WayOut: "name its Kafka by --brokers"}
		}
		if name == "latest" {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: "latest is what restore calls the newest backups", WayOut: "choose another name"}
		}
		if name != "" {
			if err := backup.CheckCutName(name); err != nil {
				return err
			}
		} else {
			name = time.Now().UTC().Format("20060102T150405Z")
		}
		ctx, cancel := context.WithTimeout(c.Context(), wait)
		defer cancel()
		return f.use(ctx, func(b *backup.Bucket) error {
			var cut *backup.Cut
			e := audit.Entry{Act: "cut", On: "cut " + name, Before: "none of the name", After: "taken"}
			err := command.Noted(noteIn(c.Context(), b), e, func() (err error) {
				t := display.StartTeller(ctx, c.ErrOrStderr())
				defer t.Close()
				cut, err = backups.TakeCut(ctx, backups.CutConfig{Name: name, Bucket: b.Counted(t.Progress), Brokers: k.At(ctx), Topics: k.Topics(), Tell: t.Say, Log: slog.Default()})
				return err
			})
			if err != nil {
				return err
			}
			return output.Write(c.OutOrStdout(), cut, func(w io.Writer) error {
				display.Printf(w, "cut %s of %s\n", cut.Name, cut.Time)
				return nil
			})
		})
	}
	return c
}

func backupRemoveCut(f *backupFlags) *cobra.Command {
	var a command.Act
	c := &cobra.Command{
		Use:     "cut-remove NAME",
		Short:   "Remove a cut; what only it needs goes with the next expiry",
		Example: `  millrace backup cut-remove --from s3://bucket/prefix before-upgrade --apply`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.use(c.Context(), func(b *backup.Bucket) error { return removeCut(c, &a, b, args[0]) })
		},
	}
	a.Flags(c)
	return c
}

func removeCut(c *cobra.Command, a *command.Act, b *backup.Bucket, name string) error {
	ctx, w, was := c.Context(), c.OutOrStdout(), ""
	var damage *backup.Damage
	switch cut, err := b.Cut(ctx, name); {
	case errors.As(err, &damage):
		was = "damaged: " + damage.Detail
	case err != nil:
		return err
	default:
		was = "of " + display.Ago(cut.Time.Std())
	}
	only, err := b.OnlyOf(ctx, name)
	if err != nil {
		return err
	}
	display.Printf(w, "the cut %s is %s; with it go %d files of %s that only it needs, and the backups that expiry kept for it alone\n", name, was, only.Files, backup.Bytes(only.Bytes))
	if ok, err := a.Meant(c); !ok {
		return err
	}
	if err := command.Noted(noteIn(ctx, b), audit.Entry{Act: "cut-remove", On: "cut " + name, Before: was, After: "removed"}, func() error { return b.RemoveCut(ctx, name) }); err != nil {
		return err
	}
	display.Printf(w, "the cut %s is removed\n", name)
	return nil
}

func backupExpire(f *backupFlags) *cobra.Command {
	var a command.Act
	var keep int
	c := &cobra.Command{
		Use:   "expire --keep N",
		Short: "Remove backups beyond the newest, and files that nothing names",
		Long: `Keeps the newest N backups of each partition, all that cuts name, and their
files. Nodes do it after each round of backups ("keep" of "backup" in their
configuration); this is for a bucket whose cluster is gone. Backups, restores
and other expiries may run meanwhile.`,
		Example: `  millrace backup expire --from s3://bucket/prefix --keep 3
  millrace backup expire --from s3://bucket/prefix --keep 3 --apply`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c.Context(), func(b *backup.Bucket) error { return expire(c, &a, b, keep) })
		},
	}
	c.Flags().IntVar(&keep, "keep", 0, "backups of each partition to keep, at least 1")
	if err := c.MarkFlagRequired("keep"); err != nil {
		panic(err) // the flag above exists
	}
	a.Flags(c)
	return c
}

func expire(c *cobra.Command, a *command.Act, b *backup.Bucket, keep int) error {
	ctx, w := c.Context(), c.OutOrStdout()
	t := display.StartTeller(ctx, c.ErrOrStderr())
	t.Say("looking for what nothing names")
	would, err := b.Expire(ctx, backup.ExpireOptions{Keep: keep, Dry: true})
	t.Close()
	if err != nil {
		return flagged(err)
	}
	what := fmt.Sprintf("%d backups, and %d files of %s", would.Backups, would.Files, backup.Bytes(would.Bytes))
	display.Printf(w, "would remove %s\n", what)
	tellBlocked(w, would)
	if ok, err := a.Meant(c); !ok {
		return err
	}
	e := audit.Entry{Act: "expire", On: "all partitions", Before: what + " beyond those to keep", After: fmt.Sprintf("%d backups of each are kept", keep)}
	return command.Noted(noteIn(ctx, b), e, func() error {
		t := display.StartTeller(ctx, c.ErrOrStderr())
		gone, err := b.Expire(ctx, backup.ExpireOptions{Keep: keep, Report: func(name string, _ int64) { t.Say("removing " + name) }})
		t.Close()
		display.Printf(w, "removed %d backups, and %d files of %s\n", gone.Backups, gone.Files, backup.Bytes(gone.Bytes))
		tellBlocked(w, gone)
		return err
	})
}

// noteIn returns a function that writes an act into the bucket's list of acts.
func noteIn(ctx context.Context, b *backup.Bucket) func(audit.Entry) error {
	return func(e audit.Entry) error { return b.WriteAct(ctx, e) }
}

// tellBlocked prints the damage because of which an expiry left files in place.
func tellBlocked(w io.Writer, e backup.Expired) {
	for _, d := range e.Blocked {
		display.Printf(w, "files stay that may be unnamed: %v\n", d)
	}
}

func backupAdopt(f *backupFlags) *cobra.Command {
	var a command.Act
	c := &cobra.Command{
		Use:   "adopt NAME",
		Short: "Make the bucket of a lost cluster this cluster's",
		Long: `A bucket is one cluster's, and refuses all others. Where a cluster is lost with
its etcd, this makes its bucket the one of the cluster that takes its place, with
all backups in it. NAME is the name of the lost cluster, which says that it is
meant: if the lost cluster still lives, it must not back up there any more.`,
		Example: `  millrace backup adopt --from s3://bucket/prefix --etcd etcd-1:2379 --cluster prod prod --apply`,
		Args:    cobra.ExactArgs(1),
	}
	cm := clusters.FlagsOf(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		b, whose, err := f.open(c.Context())
		if err != nil {
			return err
		}
		defer b.Close()
		open, identity := cm.OpenReadOnly, backups.LookAtIdentity
		if a.Apply {
			open, identity = cm.Open, backups.Identity
		}
		cl, err := open(c.Context())
		if err != nil {
			return err
		}
		defer cl.Close()
		us, err := identity(c.Context(), cl)
		if err != nil {
			return err
		}
		return adoptBucket(c, &a, b, whose, us, args[0])
	}
	a.Flags(c)
	return c
}

func adoptBucket(c *cobra.Command, a *command.Act, b *backup.Bucket, whose, us backup.Identity, name string) error {
	ctx, w := c.Context(), c.OutOrStdout()
	switch {
	case us == whose:
		display.Printf(w, "the bucket is already that of %v\n", us)
		return nil
	case name != whose.Name:
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "name", Detail: fmt.Sprintf("the bucket is that of %v, and not of %.80q; nothing was done", whose, name),
			WayOut: "say the name of the cluster that is lost, if it is this one",
		}
	}
	has, err := b.Usage(ctx)
	if err != nil {
		return err
	}
	ours := fmt.Sprint(us)
	if us.ID == "" {
		ours = us.Name + ", which has none yet"
	}
	display.Printf(w, "the bucket of %v, with %d files of %s, would be that of %s; the former could back up there no more\n", whose, has.Files, backup.Bytes(has.Bytes), ours)
	if ok, err := a.Meant(c); !ok {
		return err
	}
	if err := command.Noted(noteIn(ctx, b), audit.Entry{Act: "adopt", On: "the bucket", Before: fmt.Sprint(whose), After: ours}, func() error { return b.Adopt(ctx, us) }); err != nil {
		return err
	}
	display.Printf(w, "the bucket of %v is now that of %v\n", whose, us)
	return nil
}

// shownActs is how many acts backup acts shows at most, the newest. Expiry keeps no more.
const shownActs = 1000

func backupActs(f *backupFlags) *cobra.Command {
	var output display.Form
	c := &cobra.Command{
		Use:     "acts",
		Short:   "Who had backups expired, adopted, cut or restored, and when",
		Example: `  millrace backup acts --from s3://bucket/prefix`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c.Context(), func(b *backup.Bucket) error {
				acts, err := b.Acts(c.Context(), shownActs)
				if err != nil {
					return err
				}
				all := []audit.Entry{}
				for _, a := range slices.Backward(acts) {
					all = append(all, a.Entry)
				}
				return output.Write(c.OutOrStdout(), all, func(w io.Writer) error { return display.WriteActs(w, all) })
			})
		},
	}
	display.Flag(c, &output)
	return c
}
