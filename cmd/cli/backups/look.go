package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
)

// bucketState is what backup status shows.
type bucketState struct {
	OK         bool            `json:"ok"`     // there are no Faults
	Faults     []string        `json:"faults"` // a sentence each
	Cluster    backup.Identity `json:"cluster"`
	Partitions int             `json:"partitions"`        // how many partitions have a backup
	Lacking    string          `json:"lacking,omitempty"` // the partitions that have none, such as 0-3,7
	Backups    int             `json:"backups"`           // how many backups all partitions have, old ones too
	Oldest     *newestBackup   `json:"oldest,omitempty"`  // the oldest among the partitions' newest backups
	Bytes      int64           `json:"bytes"`             // the size of the newest backups, together
	Kept       backup.Amount   `json:"kept"`              // all files of the bucket
	Cuts       []string        `json:"cuts"`              // the names of the cuts
	Drill      *backup.Drill   `json:"drill,omitempty"`   // the last restore drill; nil: there was none
	// Healed are the last replacements of partitions that nodes found damaged, the
	// newest first, at most shownHealings.
	Healed []*backup.Healing `json:"healed"`
}

// newestBackup is the newest backup of a partition.
type newestBackup struct {
	Partition millrace.Partition `json:"partition"`
	ID        string             `json:"id"`
	Time      millrace.Time      `json:"time"`
}

func backupStatus(f *backupFlags) *cobra.Command {
	var output display.Form
	var maxAge time.Duration
	var k *reach.KafkaFlags
	c := &cobra.Command{
		Use:   "status",
		Short: "Whether every partition has a backup that can be read, and how old they are; fails unless all is well",
		Long: `Looks at the newest backup of every partition. It fails when a partition has
none that can be read, one older than --max-age, or when its last restore drill
failed, of the last 20. A backup that is dated ahead of now is damaged. Without --max-age, a good backup
of any age is well. It shows the last partitions that nodes found damaged and
replaced.

A partition into which nothing came is not backed up again, and its backup gets
old. With --brokers, one that has all that the log has is of any age.`,
		Example: `  millrace backup status --from s3://bucket/prefix --max-age 1h --brokers kafka-1:9092
  millrace backup status --from file:///backups -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b, whose, err := f.open(c.Context())
			if err != nil {
				return err
			}
			defer b.Close()
			t := display.StartTeller(c.Context(), c.ErrOrStderr())
			t.Say("reading the newest backups")
			s, err := bucketStateOf(c.Context(), b, freshness{maxAge, k})
			t.Close()
			if err != nil {
				return err
			}
			s.Cluster = whose
			if err := output.Write(c.OutOrStdout(), s, s.write); err != nil {
				return err
			}
			if !s.OK {
				return fmt.Errorf("the backups of %s are not well: %s", whose.Name, display.Faults(len(s.Faults)))
			}
			return nil
		},
	}
	display.Flag(c, &output)
	k = reach.KafkaFlagsOf(c, "of the log, for --max-age")
	c.Flags().DurationVar(&maxAge, "max-age", 0, "how old the newest backup of a partition may be; 0: of any age")
	return c
}

// freshness says how old the newest backup of a partition may be. A backup that has all
// that the log has is never too old.
type freshness struct {
	maxAge time.Duration     // 0: any age
	kafka  *reach.KafkaFlags // where the log is; if no Kafka brokers are named, the log is not asked
}

// old returns the partitions whose newest backups are too old. newest has the manifest of
// each partition's newest backup. With an error, some of the backups may have all that the
// log has, and so be well.
func (f freshness) old(ctx context.Context, newest map[millrace.Partition]*backup.Manifest) (old topology.Set, err error) {
	var suspects []kafka.TopicPartition
	for p, m := range newest {
		if f.maxAge > 0 && time.Since(m.Time.Std()) > f.maxAge {
			old.Add(p)
			suspects = append(suspects, kafka.TopicPartition{Partition: p}, kafka.TopicPartition{Stream: kafka.Features, Partition: p})
		}
	}
	if len(suspects) == 0 || len(f.kafka.Brokers) == 0 {
		return old, nil
	}
	c, err := streams.NewConsumer(streams.Config{Brokers: f.kafka.At(ctx), Topics: f.kafka.Topics()})
	if err != nil {
		return old, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, logWait)
	defer cancel()
	log, err := c.LogID(ctx)
	if err != nil {
		return old, err
	}
	ends, err := c.EndOffsets(ctx, suspects...)
	if err != nil {
		return old, err
	}
	for p, m := range newest {
		content, features := ends[kafka.TopicPartition{Partition: p}], ends[kafka.TopicPartition{Stream: kafka.Features, Partition: p}]
		if m.Log == log.String() && m.Applied.Content >= content && m.Applied.Features >= features {
			old.Remove(p)
		}
	}
	return old, nil
}

// logWait is how long the log may take to answer. After it the command shows the ages
// alone.
const logWait = 20 * time.Second

// bucketStateOf looks at a bucket. It leaves Cluster empty.
func bucketStateOf(ctx context.Context, b *backup.Bucket, fresh freshness) (*bucketState, error) {
	s := &bucketState{Faults: []string{}, Cuts: []string{}}
	newest, err := b.Newest(ctx, func(d *backup.Damage) { s.Faults = append(s.Faults, d.Error()) })
	if err != nil {
		return nil, err
	}
	ids, err := b.AllIDs(ctx)
	if err != nil {
		return nil, err
	}
	old, err := fresh.old(ctx, newest)
	if err != nil && ctx.Err() == nil { // only the log did not answer: the ages are known
		s.Faults = append(s.Faults, fmt.Sprintf("the log does not say whether the old backups have all of it: %v", err))
	} else if err != nil {
		return nil, err
	}
	var lacking topology.Set
	for p := range partition.All() {
		m := newest[p]
		s.Backups += len(ids[p])
		if m == nil {
			lacking.Add(p)
			continue
		}
		s.Partitions++
		s.Bytes += m.Bytes()
		if s.Oldest == nil || m.Time < s.Oldest.Time {
			s.Oldest = &newestBackup{p, m.ID, m.Time}
		}
	}
	if n := lacking.Len(); n > 0 {
		s.Lacking = lacking.Ranges()
		s.Faults = append(s.Faults, fmt.Sprintf("%d partitions have no backup: %s; see that a node has them ready and \"backup\" in its configuration", n, &lacking))
	}
	if n := old.Len(); n > 0 {
		s.Faults = append(s.Faults, fmt.Sprintf("%d partitions have no backup of the last %s: %s; millrace_backup_rounds_total and the nodes' logs say why", n, fresh.maxAge, &old))
	}
	if s.Cuts, err = b.Cuts(ctx); err != nil {
		return nil, err
	}
	drills, err := b.Drills(ctx, backup.RecentDrills)
	if err != nil {
		return nil, err
	}
	if len(drills) > 0 {
		s.Drill = drills[0]
	}
	for _, d := range backup.Failing(drills) {
		s.Faults = append(s.Faults, fmt.Sprintf("the last restore drill of partition %d failed: %s; mend it, and run millrace backup drill --partitions %[1]d", d.Partition, d.Fault))
	}
	if s.Healed, err = b.Healings(ctx, shownHealings); err != nil {
		return nil, err
	}
	s.Cuts, s.Healed = display.List(s.Cuts), display.List(s.Healed)
	s.Kept, err = b.Usage(ctx)
	s.OK = len(s.Faults) == 0
	return s, err
}

func (s *bucketState) write(w io.Writer) error {
	t := display.NewTable(w)
	t.Printf("cluster\t%s\n", s.Cluster)
	t.Printf("partitions\t%d of %d have a backup\n", s.Partitions, partition.Count)
	if s.Oldest != nil {
		t.Printf("oldest\t%s, of partition %d\n", display.Ago(s.Oldest.Time.Std()), s.Oldest.Partition)
	}
	t.Printf("to restore\t%s\n", backup.Bytes(s.Bytes))
	t.Printf("kept\t%d backups, %s in %d files\n", s.Backups, backup.Bytes(s.Kept.Bytes), s.Kept.Files)
	t.Printf("cuts\t%d\n", len(s.Cuts))
	t.Printf("last drill\t%s\n", drillLine(s.Drill))
	if len(s.Healed) == 0 {
		t.Printf("healed\tnone\n")
	}
	for i, h := range s.Healed {
		t.Printf("%s\t%s\n", []string{"healed", ""}[min(i, 1)], healingLine(h))
	}
	if len(s.Faults) > 0 {
		t.Printf("\nnot well:\n")
		for _, f := range s.Faults {
			t.Printf("  %s\n", f)
		}
	} else {
		t.Printf("\nall is well\n")
	}
	return t.Flush()
}

// shownHealings is how many replacements of damaged partitions backup status shows.
const shownHealings = 5

func healingLine(h *backup.Healing) string {
	from := "from backup " + h.From
	if h.From == "" {
		from = "from the log's beginning"
	}
	return fmt.Sprintf("partition %d of %s, %s (%s): %s", h.Partition, h.Node, from, display.Ago(h.Time.Std()), h.Damage)
}

func drillLine(d *backup.Drill) string {
	if d == nil {
		return "none"
	}
	result := "restored"
	if d.Fault != "" {
		result = "FAILED: " + d.Fault
	}
	return fmt.Sprintf("partition %d, %s in %.1f s, %s (%s)", d.Partition, backup.Bytes(d.Bytes), d.Seconds, result, display.Ago(d.Time.Std()))
}

func backupList(f *backupFlags) *cobra.Command {
	var output display.Form
	var of string
	c := &cobra.Command{
		Use:   "list",
		Short: "The backups there are, of each partition or of some",
		Example: `  millrace backup list --from s3://bucket/prefix
  millrace backup list --from s3://bucket/prefix --partition 7`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			set, err := partitionsFlag(of)
			if err != nil {
				return err
			}
			return f.use(c.Context(), func(b *backup.Bucket) error {
				ids, err := b.AllIDs(c.Context())
				if err != nil {
					return err
				}
				maps.DeleteFunc(ids, func(p millrace.Partition, _ []string) bool { return !set.Has(p) })
				if of == "" {
					return output.Write(c.OutOrStdout(), ids, func(w io.Writer) error { return writeIDs(w, ids) })
				}
				cuts, err := cutsBy(c.Context(), b, set)
				if err != nil {
					return err
				}
				each := eachID(ids, cuts)
				return output.Write(c.OutOrStdout(), each, func(w io.Writer) error { return writeEachID(w, each) })
			})
		},
	}
	display.Flag(c, &output)
	c.Flags().StringVar(&of, "partition", "", "of this partition, or of such as 0-3,7: every backup, and the cuts that begin with it; left out: how many there are of each")
	return c
}

func writeIDs(w io.Writer, ids map[millrace.Partition][]string) error {
	t := display.NewTable(w)
	t.Printf("PARTITION\tBACKUPS\tNEWEST\n")
	for _, p := range slices.Sorted(maps.Keys(ids)) {
		t.Printf("%d\t%d\t%s\n", p, len(ids[p]), ids[p][0])
	}
	return t.Flush()
}

// pinned names a backup of a partition, which a cut may need.
type pinned struct {
	p  millrace.Partition
	id string
}

// cutsBy returns, for each backup of a partition of set with which cuts begin, the names of
// these cuts. Cuts that cannot be read are left out: backup verify reports them.
func cutsBy(ctx context.Context, b *backup.Bucket, set topology.Set) (map[pinned][]string, error) {
	names, err := b.Cuts(ctx)
	if err != nil {
		return nil, err
	}
	unreadable := func(err error) bool {
		var damage *backup.Damage
		return errors.As(err, &damage) || errors.Is(err, fs.ErrNotExist)
	}
	by := map[pinned][]string{}
	for _, name := range names {
		cut, err := b.Cut(ctx, name)
		if unreadable(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for p := range set.All() {
			_, m, err := b.CutPart(ctx, cut, p)
			if unreadable(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			by[pinned{p, m.ID}] = append(by[pinned{p, m.ID}], name)
		}
	}
	return by, nil
}

// listedBackup is a backup of a partition, and the cuts that begin with it.
type listedBackup struct {
	Partition millrace.Partition `json:"partition"`
	Backup    string             `json:"backup"`
	Cuts      []string           `json:"cuts"`
}

func eachID(ids map[millrace.Partition][]string, cuts map[pinned][]string) []listedBackup {
	all := []listedBackup{}
	for _, p := range slices.Sorted(maps.Keys(ids)) {
		for _, id := range ids[p] {
			all = append(all, listedBackup{p, id, display.List(cuts[pinned{p, id}])})
		}
	}
	return all
}

func writeEachID(w io.Writer, all []listedBackup) error {
	t := display.NewTable(w)
	t.Printf("PARTITION\tBACKUP\tCUTS\n")
	for _, b := range all {
		t.Printf("%d\t%s\t%s\n", b.Partition, b.Backup, strings.Join(b.Cuts, ", "))
	}
	return t.Flush()
}

// manifestOf reads the manifest of a backup of a partition; the id "latest" stands for the
// newest.
func manifestOf(ctx context.Context, b *backup.Bucket, p millrace.Partition, id string) (*backup.Manifest, error) {
	if id == "latest" {
		ids, err := b.IDs(ctx, p)
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "backup", Detail: fmt.Sprintf("partition %d has no backup", p), WayOut: "millrace backup list says what there is"}
		}
		id = ids[0]
	}
	return b.Manifest(ctx, p, id)
}

func backupShow(f *backupFlags) *cobra.Command {
	var output display.Form
	c := &cobra.Command{
		Use:   "show PARTITION ID|latest",
		Short: "What one backup of a partition is: when, by whom, of what offsets, and its files",
		Example: `  millrace backup show --from s3://bucket/prefix 7 latest
  millrace backup show --from s3://bucket/prefix 7 20261122T114500.000Z-node-1 -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := command.Partition(args[0])
			if err != nil {
				return err
			}
			return f.use(c.Context(), func(b *backup.Bucket) error {
				m, err := manifestOf(c.Context(), b, p, args[1])
				if err != nil {
					return err
				}
				return output.Write(c.OutOrStdout(), m, func(w io.Writer) error { return writeManifest(w, m) })
			})
		},
	}
	display.Flag(c, &output)
	return c
}

func writeManifest(w io.Writer, m *backup.Manifest) error {
	t := display.NewTable(w)
	t.Printf("partition\t%d\nbackup\t%s\nof\t%s, by %s\n", m.Partition, m.ID, display.Ago(m.Time.Std()), m.Node)
	t.Printf("offsets\ttimeline %d, features %d\nlog\t%s\n", m.Applied.Content, m.Applied.Features, m.Log)
	t.Printf("digest\t%016x %016x\n", m.Digest.Content, m.Digest.Features)
	t.Printf("types\t%d\nbytes\t%s in %d files\n\nFILE\tBYTES\tSHA256\n", len(m.Types), backup.Bytes(m.Bytes()), len(m.Files))
	for _, file := range m.Files {
		t.Printf("%s\t%d\t%s\n", file.Name, file.Size, file.SHA256)
	}
	return t.Flush()
}

// shownDiff is what backup diff shows. Types has, by content type, how the records of the
// two backups differ; nil without --rows.
type shownDiff struct {
	backup.Difference
	Types map[millrace.ContentType]*backups.Changes `json:"types,omitempty"`
}

func backupDiff(f *backupFlags) *cobra.Command {
	var output display.Form
	var scratch string
	var rows bool
	c := &cobra.Command{
		Use:   "diff PARTITION ID1 ID2",
		Short: "What the second backup of a partition has beside the first",
		Long: `Compares the files of two backups, and with --rows also what they hold: it
restores both into scratch stores and tells by content type which timelines and
records are new, gone or changed.`,
		Example: `  millrace backup diff --from s3://bucket/prefix 7 20261122T114500.000Z-node-1 latest
  millrace backup diff --from s3://bucket/prefix 7 20261122T114500.000Z-node-1 latest --rows`,
		Args: cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := command.Partition(args[0])
			if err != nil {
				return err
			}
			return f.use(c.Context(), func(b *backup.Bucket) error {
				old, err := manifestOf(c.Context(), b, p, args[1])
				if err != nil {
					return err
				}
				now, err := manifestOf(c.Context(), b, p, args[2])
				if err != nil {
					return err
				}
				if err := scratchFlag(scratch); err != nil {
					return err
				}
				d := shownDiff{Difference: backup.Diff(old, now)}
				if rows {
					t := display.StartTeller(c.Context(), c.ErrOrStderr())
					t.Say("restoring both")
					d.Types, err = backups.DiffRows(c.Context(), backups.RestoreConfig{Bucket: b, Data: scratch, Progress: t.Progress, Log: slog.Default()}, old, now)
					t.Close()
					if err != nil {
						return err
					}
				}
				return output.Write(c.OutOrStdout(), d, func(w io.Writer) error { return d.write(w, rows) })
			})
		},
	}
	display.Flag(c, &output)
	c.Flags().BoolVar(&rows, "rows", false, "compare what they hold, too")
	c.Flags().StringVar(&scratch, "scratch", "", "a directory for the scratch stores; left out: the system's for temporary files")
	return c
}

func (d *shownDiff) write(w io.Writer, rows bool) error {
	t := display.NewTable(w)
	for _, a := range []struct {
		what string
		of   backup.Amount
	}{{"shared", d.Shared}, {"new", d.New}, {"gone", d.Gone}} {
		t.Printf("%s\t%d files\t%s\n", a.what, a.of.Files, backup.Bytes(a.of.Bytes))
	}
	t.Printf("offsets\ttimeline %+d\tfeatures %+d\n", d.Content, d.Features)
	if !rows {
		return t.Flush()
	}
	t.Printf("\nTYPE\tWHAT\tTIMELINES\tRECORDS\tBYTES\n")
	for _, name := range slices.Sorted(maps.Keys(d.Types)) {
		c := d.Types[name]
		for _, r := range []struct {
			what string
			of   backups.Rows
		}{{"new", c.New}, {"changed", c.Changed}, {"gone", c.Gone}} {
			if r.of != (backups.Rows{}) {
				t.Printf("%s\t%s\t%d\t%d\t%d\n", name, r.what, r.of.Timelines, r.of.Records, r.of.Bytes)
			}
		}
	}
	return t.Flush()
}

func backupCuts(f *backupFlags) *cobra.Command {
	var output display.Form
	c := &cobra.Command{
		Use:     "cuts",
		Short:   "The cuts there are: moments of the whole cluster",
		Example: `  millrace backup cuts --from s3://bucket/prefix`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c.Context(), func(b *backup.Bucket) error {
				names, err := b.Cuts(c.Context())
				if err != nil {
					return err
				}
				all, faults := []*backup.Cut{}, []error(nil) // the cuts that can be read are shown whatever is wrong with others
				for _, name := range names {
					cut, err := b.Cut(c.Context(), name)
					if err != nil {
						faults = append(faults, err)
						continue
					}
					all = append(all, cut)
				}
				err = output.Write(c.OutOrStdout(), all, func(w io.Writer) error { return writeCuts(w, all) })
				return errors.Join(err, errors.Join(faults...))
			})
		},
	}
	display.Flag(c, &output)
	return c
}

func writeCuts(w io.Writer, all []*backup.Cut) error {
	t := display.NewTable(w)
	t.Printf("CUT\tOF\tTIMELINE\tFEATURES\tGROUPS\n")
	for _, c := range all {
		t.Printf("%s\t%s\t%d\t%d\t%d\n", c.Name, display.Ago(c.Time.Std()), total(c.Content), total(c.Features), len(c.Groups))
	}
	return t.Flush()
}

// total returns the sum of the offsets of all partitions.
func total(all []millrace.Offset) (n millrace.Offset) {
	for _, at := range all {
		n += at
	}
	return n
}
