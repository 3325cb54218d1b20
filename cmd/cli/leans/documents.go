package leans

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

// Unread returns a line for a fault that some documents in etcd cannot be read: it says
// which, and that the command remove removes them. It returns no line if fault is nil. It
// returns fault as the error if etcd as a whole is at fault, such as when it is away: then
// each document may be good, and none should be removed.
func Unread(fault error, remove string) (lines []string, err error) {
	switch {
	case fault == nil:
		return nil, nil
	case cluster.Doubted(fault):
		return nil, fault
	}
	return []string{fault.Error() + "\nwhat cannot be read is removed by " + remove}, nil
}

// BareLines returns a line for each version that etcd names without having its bytes; one
// is the kind as a noun, such as "model". Except for models, it leaves out versions that
// serve: commands read those, and tell of them with all that cannot be read.
func BareLines(ctx context.Context, of *artefacts.Kind, one string) (lines []string, err error) {
	all, err := of.Bare(ctx)
	serving := of.Serving()
	for _, v := range all {
		if one == "model" || serving[v.Name] != v {
			lines = append(lines, BareLine(one, v, serving[v.Name] == v))
		}
	}
	return lines, err
}

// BareLine says that etcd names a version without having its bytes, what follows, and what
// to do. One is the kind as a noun, such as "model".
func BareLine(one string, v artefacts.Version, serves bool) string {
	then, beside := "nobody can go back to it", "define it again if it is needed"
	if serves {
		then = "it serves, and who starts without it on disk does not get it"
	}
	if one == "model" {
		beside = "push the same pack again"
	}
	return fmt.Sprintf("the bytes of %s %s are not in etcd: %s; %s; else %s", one, v, then, artefacts.BytesWayOut, beside)
}

// DropUnreadable removes the artefact called name if what etcd has of it cannot be read, and
// if meant says that the caller wants that. what is the kind as a noun. It returns false,
// with nothing removed, if the artefact can be read, or if that is not known. Otherwise it
// returns true, also if nothing is removed because meant says no or the removal fails.
func DropUnreadable(ctx context.Context, w io.Writer, of *artefacts.Kind, what, name string, meant command.Meant) (bool, error) {
	why, err := of.Unreadable(ctx, name)
	if why == nil || err != nil {
		return false, err
	}
	fmt.Fprintf(w, "%s %s would be dropped, whole, with its history, and what brokers and nodes last read of it: it cannot be read: %v\n", what, name, why)
	if ok, err := meant(); !ok {
		return true, err
	}
	if err := of.DropUnreadable(ctx, name, clusters.Who()); err != nil {
		return true, err
	}
	fmt.Fprintf(w, "%s %s is dropped\n", what, name)
	return true, nil
}

// EventShown is a change of a document or of a model, as JSON.
type EventShown struct {
	When     time.Time     `json:"when"`
	What     ledger.Change `json:"what"`
	Version  string        `json:"version,omitempty"`
	Checksum string        `json:"checksum,omitempty"`
	Who      string        `json:"who"`
}

// EventsShown returns changes as JSON has them; an empty list, not nil, if there are none.
func EventsShown(events []ledger.Event) []EventShown {
	all := []EventShown{}
	for _, e := range events {
		all = append(all, EventShown{e.When.UTC(), e.What, strings.TrimPrefix(e.Version, "-"), e.Sum, e.Who})
	}
	return all
}

// WriteEvents prints the changes of a document.
func WriteEvents(w io.Writer, events []ledger.Event) error {
	t := display.NewTable(w)
	t.Printf("WHEN\tWHAT\tVERSION\tWHO\n")
	for _, e := range events {
		t.Printf("%s\t%s\t%s\t%s\n", e.When.Format(time.RFC3339), e.What, e.Version, e.Who)
	}
	return t.Flush()
}
