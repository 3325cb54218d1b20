// Package backups has the commands that show what backups are in a bucket, check whether
// they can be restored, and restore them. Package internal/backup has the form of a bucket,
// and package indexnode/backups makes and restores backups.
//
// A backup is of one partition. A cut is one moment of the whole cluster: for each
// partition it names a backup, and holds the records of the log from there to that moment.
// An act is a change that a person made to a bucket, or a restore; the bucket keeps a list
// of them.
package backups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// backupFlags are the flags that all backup commands take.
type backupFlags struct {
	from     string // the bucket's URL
	insecure bool   // see [backup.Options]
}

// Command returns the command backup, with all of its commands.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "backup",
		Short: "Show, verify, drill, cut and restore backups",
		Long: `Index nodes back up by themselves where their configuration says so ("backup"
in millrace indexnode --help). These commands look at what they have put into
the bucket, and bring it back. See docs/backup.md.`,
		Example: `  millrace backup status --from s3://bucket/prefix
  millrace backup cut --from s3://bucket/prefix --brokers kafka-1:9092 --name before-upgrade
  millrace backup restore --from s3://bucket/prefix --to before-upgrade --data /var/lib/millrace`,
	}
	var f backupFlags
	c.PersistentFlags().StringVar(&f.from, "from", "", "the bucket: file:///dir, s3://bucket/prefix, gs://bucket/prefix or azblob://container/prefix")
	c.PersistentFlags().BoolVar(&f.insecure, "from-insecure", false, "speak plain text to the bucket's server beyond loopback")
	c.AddCommand(
		backupStatus(&f), backupList(&f), backupShow(&f), backupDiff(&f), backupCuts(&f),
		backupCut(&f), backupRemoveCut(&f), backupVerify(&f), backupDrill(&f), backupRestore(&f),
		backupExpire(&f), backupAdopt(&f), backupActs(&f),
	)
	return c
}

// open opens the bucket, and returns the cluster that it belongs to. A bucket that
// belongs to none is an error.
func (f *backupFlags) open(ctx context.Context) (*backup.Bucket, backup.Identity, error) {
	if f.from == "" {
		return nil, backup.Identity{}, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "from", Detail: "nothing says where the backups are",
			WayOut: "name the bucket of the nodes' configuration (backup.to), such as --from s3://bucket/prefix",
		}
	}
	b, err := backup.Open(ctx, f.from, backup.Options{Insecure: f.insecure, Log: slog.Default()})
	if err != nil {
		return nil, backup.Identity{}, flagged(err)
	}
	whose, err := b.Identity(ctx)
	if errors.Is(err, backup.ErrUnclaimed) {
		err = &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "from", Detail: "nobody has backed up to " + f.from,
			WayOut: "name the bucket of the nodes' configuration (backup.to), or wait for the first backup",
		}
	}
	if err != nil {
		return nil, whose, errors.Join(err, b.Close())
	}
	return b, whose, nil
}

// flagged returns err, which may name a field of a node's configuration. Where a flag sets
// the same, the returned error names the flag instead.
func flagged(err error) error {
	if told, ok := errors.AsType[*millrace.Error](err); ok {
		if flag, ok := map[string]string{"backup.to": "from", "backup.keep": "keep"}[told.Field]; ok {
			named := *told
			named.Field = flag
			return &named
		}
	}
	return err
}

// use opens the bucket, calls do with it, and closes it.
func (f *backupFlags) use(ctx context.Context, do func(*backup.Bucket) error) error {
	b, _, err := f.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(do(b), b.Close())
}

// targetOf reads the flag --to, which says what state to restore. It returns the name of a
// cut, or a time, or neither for "latest". It does not check that the cut exists.
func targetOf(to string) (cut string, at time.Time, err error) {
	if to == "latest" {
		return "", at, nil
	}
	if at, err = time.Parse(time.RFC3339Nano, to); err == nil {
		if time.Until(at) > 0 {
			return "", at, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "to", Detail: fmt.Sprintf("%s is in the future", to), WayOut: "say latest, or a time that is past"}
		}
		return "", at, nil
	}
	if to == "" || len(to) > 63 {
		return "", at, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "to", Detail: fmt.Sprintf("%.80q is no state to go back to", to),
			WayOut: "say latest, the name of a cut (millrace backup cuts), or a time such as 2026-11-22T11:45:00Z",
		}
	}
	return to, time.Time{}, nil
}

// scratchFlag checks the flag --scratch. It refuses a directory whose parent does not
// exist: the name is misspelt, or the disk is not mounted, and the directory must not be
// made in the wrong place. Empty stands for the system's directory for temporary files.
func scratchFlag(dir string) error {
	if dir == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Dir(filepath.Clean(dir))); err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "scratch", Detail: fmt.Sprintf("%.200q cannot be made: %v", dir, err), WayOut: "create the directory above it, or mount it"}
	}
	return nil
}

// partitionsFlag reads a set of partitions, such as 0-3,7; empty means all.
func partitionsFlag(text string) (topology.Set, error) {
	if text == "" {
		return topology.All(), nil
	}
	return topology.ParseSet(text)
}
