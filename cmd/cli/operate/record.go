package operate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/partition"
)

// Record returns the command record, which deletes records from all timelines and replicas.
func Record() *cobra.Command {
	c := &cobra.Command{
		Use:     "record",
		Short:   "Delete records from every timeline, replica and later restore",
		Example: `  millrace record delete post:17 --entity member:42 --apply`,
	}
	cm := clusters.FlagsOf(c.PersistentFlags())
	c.AddCommand(recordDelete(cm))
	return c
}

// deleting has the flags of record delete, and the cluster once run has opened it.
type deleting struct {
	command.Act
	entities   []string
	file       string
	topic      string
	everywhere bool
	patience   time.Duration // --wait
	o          *clusters.Operating
}

func recordDelete(cm *clusters.Flags) *cobra.Command {
	d := deleting{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:   "delete [ID] --entity ENTITY | --everywhere | --file FILE",
		Short: "Delete records: show where they are, write tombstones, and wait until no replica has them",
		Long: `Looks for records on all nodes and shows where they are: in which timelines, of
which version, and whether in the cache. A record is looked for in the timelines
of --entity, and in all others that it says it went to; --everywhere reads all that
nodes hold, which takes them time and disk.

--apply writes a tombstone of each to a content topic, whatever its schema. It
comes to every replica by the log, and so to every backup that is restored later,
also an older one, once the log after it is applied. It hides all versions up to
the one that was found, those too that come later; one with a higher version is a
new record. Then it waits until all replicas that are there have applied it and
have it in their caches no more, and says so of each.

--file has a line of JSON for each record: {"id": "post:17", "entity": "member:42"},
without entity for those to be looked for everywhere. "-" is standard input.`,
		Example: `  millrace record delete post:17 --entity member:42
  millrace record delete post:17 --entity member:42 --apply --yes
  millrace record delete --file erase.ndjson --apply --yes -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return d.run(c, args) },
	}
	f := c.Flags()
	f.StringSliceVar(&d.entities, "entity", nil, "whose timelines have the record")
	f.BoolVar(&d.everywhere, "everywhere", false, "look for it in all timelines")
	f.StringVar(&d.file, "file", "", "a file of records, a line of JSON each; - is standard input")
	f.StringVar(&d.topic, "topic", "", "the content topic to write to (default: the only one that partitioners read)")
	f.DurationVar(&d.patience, "wait", time.Minute, "how long the node may take to write, and after --apply all replicas to apply it")
	d.Flags(c)
	display.Flag(c, &d.Output)
	return c
}

// wanted returns the records that the arguments, the flags or the file name. A record
// without an entity is to be looked for in all timelines.
func (d *deleting) wanted(ctx context.Context, in io.Reader, args []string) ([]*nodev1.WantedRecord, error) {
	refuse := func(field, detail, way string) ([]*nodev1.WantedRecord, error) {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: way}
	}
	if d.file != "" {
		if len(args) > 0 || len(d.entities) > 0 || d.everywhere {
			return refuse("file", "the file says which records are meant", "leave out the id, --entity and --everywhere, or --file")
		}
		return readWanted(ctx, in, d.file)
	}
	switch {
	case len(args) == 0 || args[0] == "":
		return refuse("ID", "no record is named", "name one, or a --file of them")
	case len(d.entities) == 0 && !d.everywhere:
		return refuse("entity", "nothing says where to look", "name an --entity that has it, or say --everywhere")
	case len(d.entities) > 0 && d.everywhere:
		return refuse("everywhere", "all timelines are looked into already", "leave out --entity or --everywhere")
	case d.everywhere:
		return []*nodev1.WantedRecord{{Id: args[0]}}, nil
	}
	var all []*nodev1.WantedRecord
	for _, e := range d.entities {
		all = append(all, &nodev1.WantedRecord{Id: args[0], Entity: e})
	}
	return all, nil
}

// maxDeleted is how many records a file may name: nodes look for no more at once.
const maxDeleted = 10_000

// maxWantedLine is the longest line of such a file, in bytes.
const maxWantedLine = 64 << 10

// readWanted reads the records that a file names, or standard input (in) if file is "-".
func readWanted(ctx context.Context, in io.Reader, file string) (all []*nodev1.WantedRecord, err error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "file", Detail: err.Error(), WayOut: "name a file of lines of JSON, or - for standard input"}
		}
		defer f.Close()
		in = f
	}
	err = command.EachLine(ctx, in, file, maxWantedLine, func(n int, line []byte) error {
		var w struct {
			ID     string `json:"id"`
			Entity string `json:"entity"`
		}
		read := json.NewDecoder(bytes.NewReader(line))
		read.DisallowUnknownFields()
		if err := read.Decode(&w); err != nil || w.ID == "" {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "file", Detail: fmt.Sprintf("line %d names no record: %.70q", n, line), WayOut: `write lines such as {"id": "post:17", "entity": "member:42"}; entity may be left out`}
		}
		if all = append(all, &nodev1.WantedRecord{Id: w.ID, Entity: w.Entity}); len(all) > maxDeleted {
			return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "file", Detail: fmt.Sprintf("it names more than %d records", maxDeleted), WayOut: "split it"}
		}
		return nil
	})
	if e := (*millrace.Error)(nil); errors.As(err, &e) {
		return nil, e
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil || len(all) == 0 {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "file", Detail: cmp.Or(err, errors.New("it names no record")).Error(), WayOut: "write a line of JSON for each record"}
	}
	return all, nil
}

// spot is a record in one timeline. kind is its content type.
type spot struct{ id, entity, kind string }

// sightings are where records were found, and where they were looked for.
type sightings struct {
	spots  []spot                                           // sorted by id, type and entity
	at     map[spot]map[millrace.NodeID]*nodev1.FoundRecord // the record, on each node that has it
	looked map[millrace.NodeID]map[millrace.Partition]bool  // the partitions that each node looked into
}

// find asks all nodes that are alive for the wanted records. A record that was found says
// which other timelines it went to; find then looks for it in those too.
func (d *deleting) find(ctx context.Context, wanted []*nodev1.WantedRecord) (*sightings, error) {
	found := &sightings{at: map[spot]map[millrace.NodeID]*nodev1.FoundRecord{}, looked: map[millrace.NodeID]map[millrace.Partition]bool{}}
	type where struct{ id, entity string }
	asked := map[where]bool{}
	for len(wanted) > 0 {
		for _, w := range wanted {
			asked[where{w.Id, w.Entity}] = true
		}
		further := map[where]bool{}
		for _, n := range d.o.Map.Nodes() {
			if !d.o.Map.Alive(n.ID) {
				continue
			}
			if err := d.ask(ctx, n.ID, wanted, found, func(f *nodev1.FoundRecord) {
				for _, e := range f.Timelines {
					if w := (where{f.Record.Id, e}); !asked[w] && !asked[where{w.id, ""}] {
						further[w] = true
					}
				}
			}); err != nil {
				return nil, fmt.Errorf("%s: %w", n.ID, err)
			}
		}
		wanted = nil
		for w := range further {
			wanted = append(wanted, &nodev1.WantedRecord{Id: w.id, Entity: w.entity})
		}
	}
	slices.SortFunc(found.spots, func(a, b spot) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.kind, b.kind), cmp.Compare(a.entity, b.entity))
	})
	return found, nil
}

// ask looks for wanted records on one node. It adds those that the node has to the sightings,
// and calls saw with each.
func (d *deleting) ask(ctx context.Context, id millrace.NodeID, wanted []*nodev1.WantedRecord, to *sightings, saw func(*nodev1.FoundRecord)) error {
	n, _ := d.o.Map.Node(id)
	node, err := d.o.Conns.Admin(n)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(wanted, maxDeleted) { // nodes take no more at once
		stream, err := node.FindRecords(ctx, &nodev1.FindRecordsRequest{Wanted: some})
		if err := clusters.Receive(stream, err, func(m *nodev1.FindRecordsResponse) error {
			to.add(id, m, saw)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// add adds what a node has found, and calls saw with each record.
func (s *sightings) add(id millrace.NodeID, m *nodev1.FindRecordsResponse, saw func(*nodev1.FoundRecord)) {
	for _, f := range m.Found {
		at := spot{f.Record.Id, f.Entity, f.Record.Type}
		if s.at[at] == nil {
			s.at[at] = map[millrace.NodeID]*nodev1.FoundRecord{}
			s.spots = append(s.spots, at)
		}
		s.at[at][id] = f
		saw(f)
	}
	if s.looked[id] == nil {
		s.looked[id] = map[millrace.Partition]bool{}
	}
	for _, p := range m.Partitions {
		s.looked[id][millrace.Partition(p)] = true
	}
}

// unseen returns, in words, the replicas of some partitions that were not looked into. It
// returns an error if no replica of one of them was.
func (d *deleting) unseen(found *sightings, of map[millrace.Partition]bool) (all []string, err error) {
	for p := range partition.All() {
		if !of[p] {
			continue
		}
		seen := 0
		for _, looked := range found.looked {
			if looked[p] {
				seen++
			}
		}
		if seen == 0 {
			return nil, &millrace.Error{
				Reason: millrace.ReasonUnavailable, Field: "entity", Detail: fmt.Sprintf("no replica of partition %d could be looked into", p), WayOut: "millrace cluster show says why; try again when one is ready",
			}
		}
		for _, id := range d.o.Map.Replicas(p) {
			if !found.looked[id][p] {
				all = append(all, fmt.Sprintf("partition %d of %s", p, id))
			}
		}
	}
	return all, nil
}

// partitionsOf returns the set of the partitions where records are to be looked for or were
// found.
func partitionsOf(wanted []*nodev1.WantedRecord, found *sightings) map[millrace.Partition]bool {
	of := map[millrace.Partition]bool{}
	for _, w := range wanted {
		if w.Entity != "" {
			of[partition.Of(millrace.Entity(w.Entity))] = true
			continue
		}
		for p := range partition.All() {
			of[p] = true
		}
	}
	for _, s := range found.spots {
		of[partition.Of(millrace.Entity(s.entity))] = true
	}
	return of
}

// alive reports whether a node has a record in such a state that an answer may show it.
func alive(f *nodev1.FoundRecord) bool {
	return f.Record.InCache || f.Record.InStore && !f.Record.Deleted
}

// maxEntities is how many entities one tombstone names at most: the entity that it is of, and
// millrace.MaxAbout others. It deletes the record in the timelines of all of them.
const maxEntities = millrace.MaxAbout + 1

// tombstones returns the tombstones that delete all records of s that are alive on some node.
// Each is of one id and type, names at most maxEntities entities, and has the highest version
// that was found in their timelines. It relies on the order of s.spots.
func (s *sightings) tombstones() (all []*nodev1.Tombstone) {
	for _, at := range s.spots {
		var newest *nodev1.TimelineRecord
		live := false
		for _, f := range s.at[at] {
			live = live || alive(f)
			if newest == nil || f.Record.Version > newest.Version {
				newest = f.Record
			}
		}
		if !live {
			continue
		}
		var t *nodev1.Tombstone
		if len(all) > 0 {
			t = all[len(all)-1]
		}
		if t == nil || t.Id != at.id || t.Type != at.kind || len(t.Entities) == maxEntities {
			t = &nodev1.Tombstone{Id: at.id, Type: at.kind, Version: newest.Version, TimeMs: newest.TimeMs}
			all = append(all, t)
		}
		t.Entities = append(t.Entities, at.entity)
		if newest.Version > t.Version {
			t.Version, t.TimeMs = newest.Version, newest.TimeMs
		}
	}
	return all
}

// wantedShown is a record as it was named.
type wantedShown struct {
	ID     string `json:"id"`
	Entity string `json:"entity,omitempty"` // empty: looked for everywhere
}

// nowhere returns the wanted records that no replica has, each once.
func (s *sightings) nowhere(wanted []*nodev1.WantedRecord) (none []wantedShown) {
	known := map[wantedShown]bool{}
	for _, at := range s.spots {
		known[wantedShown{ID: at.id}], known[wantedShown{at.id, at.entity}] = true, true
	}
	for _, w := range wanted {
		if shown := (wantedShown{w.Id, w.Entity}); !known[shown] {
			none, known[shown] = append(none, shown), true
		}
	}
	return none
}

// deletionShown is a deletion as JSON.
type deletionShown struct {
	Found      []sightingShown `json:"found"`
	NotFound   []wantedShown   `json:"not_found"`
	Everywhere bool            `json:"everywhere"`       // all were looked for in all timelines
	Unseen     []string        `json:"unseen,omitempty"` // in words, the replicas that could not be looked into
	Topic      string          `json:"topic,omitempty"`  // where the tombstones are written
	Records    int64           `json:"tombstones"`       // how many there are
	Applied    bool            `json:"applied"`          // they are written
	After      []sightingShown `json:"after,omitempty"`  // where the records were after that, in the last look
}

// writeLeft says what was not found, and where it was not looked for.
func (s *deletionShown) writeLeft(w io.Writer) {
	const named = 5
	if n := len(s.NotFound); n > 0 {
		display.Printf(w, "NOT FOUND, so that no tombstone hides it: %d of the records named", n)
		for i, r := range s.NotFound[:min(n, named)] {
			display.Printf(w, "%s %.70q", []string{":", ","}[min(i, 1)], r.ID)
			if r.Entity != "" {
				display.Printf(w, " of %.70q", r.Entity)
			}
		}
		if n > named {
			display.Printf(w, " and %d more, which -o json names", n-named)
		}
		display.Printf(w, "\n")
	}
	if !s.Everywhere {
		display.Printf(w, "an earlier version may be in timelines that the newest does not go to: --everywhere, or lines without entity, look into all\n")
	}
}

// sightingShown is a record, without its body, as one node has it in one timeline.
type sightingShown struct {
	recordLine
	Partition millrace.Partition `json:"partition"`
	Node      millrace.NodeID    `json:"node"`
	InStore   bool               `json:"in_store"`
	InCache   bool               `json:"in_cache"`
}

// shown returns where records were found, as the command shows it.
func (s *sightings) shown() (all []sightingShown) {
	for _, at := range s.spots {
		nodes := s.at[at]
		for id := range s.looked {
			f := nodes[id]
			if f == nil {
				continue
			}
			l := recordLineOf(f.Entity, f.Record)
			l.Record = nil // the output may be logged, and what is erased must not be in a log
			all = append(all, sightingShown{l, millrace.Partition(f.Partition), id, f.Record.InStore, f.Record.InCache})
		}
	}
	slices.SortStableFunc(all, func(a, b sightingShown) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Entity, b.Entity), cmp.Compare(a.Node, b.Node))
	})
	return all
}

func writeSightings(w io.Writer, all []sightingShown) {
	t := display.NewTable(w)
	t.Printf("ID\tTIMELINE\tPARTITION\tNODE\tVERSION\tTIME\tIS\n")
	for _, s := range all {
		is := "expired"
		switch {
		case s.Deleted:
			is = "deleted"
		case s.InStore:
			is = "in the store"
		}
		if s.InCache {
			is += ", in the cache"
		}
		t.Printf("%s\t%s/%s\t%d\t%s\t%d\t%s\t%s\n", display.Printable(s.ID), display.Printable(s.Entity), s.Type, s.Partition, s.Node, s.Version, s.Time, is)
	}
	t.Flush()
}

// run shows where the records are, and then calls do if any of them is to be deleted.
func (d *deleting) run(c *cobra.Command, args []string) (err error) {
	wanted, err := d.wanted(c.Context(), c.InOrStdin(), args)
	if err != nil {
		return err
	}
	asJSON := d.Output.JSON()
	if d.o, err = d.Cluster.Operate(c.Context()); err != nil {
		return err
	}
	defer d.o.Close()
	found, err := d.find(c.Context(), wanted)
	if err != nil {
		return err
	}
	shown := deletionShown{
		NotFound:   display.List(found.nowhere(wanted)),
		Everywhere: !slices.ContainsFunc(wanted, func(w *nodev1.WantedRecord) bool { return w.Entity != "" }),
	}
	if shown.Unseen, err = d.unseen(found, partitionsOf(wanted, found)); err != nil {
		return err
	}
	if len(found.spots) == 0 {
		return &millrace.Error{
			Reason: millrace.ReasonUnknown, Field: "ID", Detail: "no replica has any of the records in the timelines that were looked into",
			WayOut: "name another --entity, or say --everywhere; millrace timeline history says what the log had",
		}
	}
	shown.Found = display.List(found.shown())
	w := c.OutOrStdout()
	tombstones := found.tombstones()
	if !asJSON {
		writeSightings(w, shown.Found)
		for _, u := range shown.Unseen {
			display.Printf(w, "%s could not be looked into: it applies the log when it is back\n", u)
		}
		shown.writeLeft(w)
		if len(tombstones) == 0 {
			fmt.Fprintln(w, "all that was found is deleted already")
		}
	} else {
		defer func() {
			if err == nil || shown.Applied {
				err = errors.Join(display.WriteJSON(w, shown), err)
			}
		}()
	}
	if len(tombstones) == 0 {
		return nil
	}
	return d.do(c, found, tombstones, &shown, asJSON)
}

// do writes the tombstones, if --apply is given and the user agrees, and waits until all
// replicas have them.
func (d *deleting) do(c *cobra.Command, found *sightings, tombstones []*nodev1.Tombstone, shown *deletionShown, asJSON bool) error {
	ctx, w := c.Context(), c.OutOrStdout()
	n, err := d.o.Replica(partition.Of(millrace.Entity(tombstones[0].Entities[0])), "")
	if err != nil {
		return err
	}
	node, err := d.o.Conns.Admin(n)
	if err != nil {
		return err
	}
	req := &nodev1.DeleteRecordsRequest{Tombstones: tombstones, Topic: d.topic}
	resp, err := clusters.Act(ctx, d.patience, node.DeleteRecords, req)
	if err != nil {
		return err
	}
	shown.Topic, shown.Records = resp.Topic, resp.Records
	if !asJSON {
		display.Printf(w, "%d tombstones would go to topic %s\n", resp.Records, resp.Topic)
	}
	if ok, err := d.Meant(c); !ok {
		return err
	}
	req.Topic, req.Apply = resp.Topic, true
	waiting, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	if _, err := clusters.Act(ctx, d.patience, node.DeleteRecords, req); err != nil {
		return err
	}
	shown.Applied = true
	after, err := d.await(waiting, found, tombstones)
	if after != nil {
		if shown.After = after.shown(); !asJSON {
			writeSightings(w, shown.After)
		}
	}
	if err == nil && !asJSON {
		display.Printf(w, "deleted: every replica that is there has applied it, in %d timelines\n", len(after.spots))
		shown.writeLeft(w)
	}
	return err
}

// await returns once all replicas that found looked into have applied the tombstones, or with
// an error once waiting ends. after is what the last look found; nil: none succeeded.
func (d *deleting) await(waiting context.Context, found *sightings, tombstones []*nodev1.Tombstone) (after *sightings, err error) {
	var wanted []*nodev1.WantedRecord
	for _, t := range tombstones {
		for _, e := range t.Entities {
			wanted = append(wanted, &nodev1.WantedRecord{Id: t.Id, Entity: e})
		}
	}
	for why := error(nil); ; {
		seen, err := d.find(waiting, wanted)
		if err == nil {
			after = seen
			if err = seen.gone(found, tombstones); err == nil {
				return after, nil
			}
		}
		if e, ok := errors.AsType[*millrace.Error](err); why == nil || !ok || e.Reason != millrace.ReasonDeadline { // a look that the deadline cut off says less than the one before
			why = err
		}
		select {
		case <-waiting.Done():
			return after, &millrace.Error{
				Reason: millrace.ReasonDeadline, Field: "wait", Detail: fmt.Sprintf("the tombstones are in the log, and after %s %v", d.patience, why),
				WayOut: "run the command again without --apply, which shows what is there; millrace topics show says how far partitioners are",
			}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// gone returns an error that names a replica which has not applied a tombstone; nil if all
// that before looked into have.
func (s *sightings) gone(before *sightings, tombstones []*nodev1.Tombstone) error {
	for _, t := range tombstones {
		for _, e := range t.Entities {
			for id, looked := range before.looked {
				if !looked[partition.Of(millrace.Entity(e))] {
					continue
				}
				f := s.at[spot{t.Id, e, t.Type}][id]
				if f == nil || !f.Record.Deleted || f.Record.Version < t.Version || f.Record.InCache {
					return fmt.Errorf("%s has not applied the tombstone of %.70q in %.70q", id, t.Id, e)
				}
			}
		}
	}
	return nil
}
