// Package restoration brings the state of a cluster back into an etcd that has lost it,
// from what processes kept on disk. A keyspace is all that etcd holds of a cluster since
// its beginning or its last restoration; it has a name with a generation. A restoration
// begins the keyspace's next generation, by which processes know that what it wrote
// continues what they keep.
//
// The map is the cluster's nodes with the assignment of partitions to them. Its epoch rises
// with each assignment. A setback is a key in etcd that says that etcd went back to an
// older state.
package restoration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/line"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/wait"
)

// Restored is what [Restore] brought back.
type Restored struct {
	Epoch     int64 // of the assignment that is in etcd now
	Documents []Brought
	Bytes     []BroughtBytes
	Secrets   int // how many were restored
	// Alone says that etcd lacked nothing but bytes, so that the assignment and the keyspace
	// are as before.
	Alone bool
	Dirs  []KeptDir
	Empty []string // directories in which nothing is kept
	// Stays are documents (kind and name) that differ between etcd and the directories, and
	// stay as etcd has them, since they were written there later.
	Stays []string
	// Serves is for documents of Stays and Unsure that are artefacts, by kind and name: the
	// version that serves in etcd, and the one that served according to the directories.
	Serves map[string]Pointers
	// Undone are versions that a change had put into etcd after the directories were written.
	// The change was refused before they served, and they are gone.
	Undone []string
	// Unsure are documents that differ between etcd and the directories, and stay as etcd has
	// them, since it cannot be told which is newer.
	Unsure []string
	// Again are documents that etcd has from its backup, and that the directories do not
	// know: they were removed after the backup, and exist again.
	Again []string
	// Lacks are versions that did not serve, and whose bytes are nowhere. Those of documents
	// that were restored are dropped.
	Lacks []string
	// Lost are versions that served, and whose bytes are nowhere.
	Lost []Lost
	// Dropped is how many versions of Lost and Lacks no document names any more.
	Dropped int
}

// Lost is a version that served and is gone (kind, name and version), and the version that
// serves in its place; "" if none does.
type Lost struct{ Version, Now string }

// Brought is a document that was restored.
type Brought struct {
	Document string // kind and name
	Dir      string // that it comes from
	Revision int64  // of etcd, at which it was written when the directory kept it
	Serves   string // the version that serves; empty: none, or it is not an artefact
}

// BroughtBytes are versions of a document whose bytes were restored from one directory.
type BroughtBytes struct {
	Document string // kind and name
	Versions []string
	Dir      string // that the bytes come from
}

// Pointers are the version of an artefact that serves in etcd now, and the one that served
// according to a directory.
type Pointers struct{ Now, Kept string }

// KeptDir is a directory that a restoration has read.
type KeptDir struct {
	Dir     string
	Written time.Time // when a file in it was last written
}

// ErrNothingLost says that there is nothing to restore.
var ErrNothingLost = errors.New("cluster: etcd holds all that these directories know of, and no process that runs has said that it keeps more; nothing is restored")

// ErrOlderDirs refuses a restoration by which something would be lost: all directories are
// older than what processes keep, or they lack the bytes of a version that serves. It also
// refuses directories that have nothing of what etcd lacks, if etcd lacks bytes.
var ErrOlderDirs = errors.New("cluster: these directories are older than what processes remember")

// Restore brings the state of a cluster back into an etcd that lost it, or that was
// restored from an older backup. It reads directories in which processes of the cluster
// kept their last good state ([cluster.Config.Dir]), and restores the newest of each thing.
// What was written to etcd since stays. Processes that keep the last good state go on with
// what Restore wrote.
//
// It returns an [ErrOlderDirs] if processes keep something newer than the directories have,
// or if the bytes of a version that serves are neither in the directories nor in etcd. It
// returns an [ErrNothingLost] if etcd has all that the directories have.
func Restore(ctx context.Context, c *cluster.Client, dirs ...string) (Restored, error) {
	return restore(ctx, c, false, dirs)
}

// RestoreOlder is Restore that takes directories which are older than what processes keep,
// too; these give up what is newer. In place of a version whose bytes are nowhere, the
// version that served before it serves.
func RestoreOlder(ctx context.Context, c *cluster.Client, dirs ...string) (Restored, error) {
	return restore(ctx, c, true, dirs)
}

func restore(ctx context.Context, c *cluster.Client, older bool, dirs []string) (r Restored, err error) {
	kept, err := readKept(dirs)
	if err != nil {
		return r, err
	}
	r.Empty, r.Dirs = kept.empty, kept.dirs
	have, of, err := looked(ctx, c, kept)
	if err != nil {
		return r, err
	}
	p, err := steering.ReadPresent(ctx, c)
	if err != nil {
		return r, err
	}
	if err := kept.refuseOlder(of, have, p.Epoch()); err != nil && !older {
		return r, err
	}
	holds, err := holds(ctx, c, kept, have)
	if err != nil {
		return r, err
	}
	plans := asTheyAre(have)
	if !holds {
		plans = kept.plans(have, &r)
	}
	if err := findBodies(ctx, c, plans, dirs); err != nil {
		return r, err
	}
	if err := lackedBodies(plans, of); err != nil && !older {
		return r, err
	}
	if holds {
		r.Epoch, r.Alone = p.Epoch(), true
		err = restoreBytes(ctx, c, plans, older, &r)
		return r, err
	}
	if err = restoreDocuments(ctx, c, plans, older, &r); err != nil {
		return r, fmt.Errorf("cluster: restore: %w", err)
	}
	for name, secret := range kept.secrets {
		now, err := secrets.Share(ctx, c, name, secret)
		if err != nil {
			return r, fmt.Errorf("cluster: restore: secret %s: %w", name, err)
		}
		if _, there := have.Values[cluster.SecretsPrefix+name]; !there && bytes.Equal(now, secret) {
			r.Secrets++
		}
	}
	for _, id := range kept.assignment.Nodes() {
		if err := restoreKnown(ctx, c, id, kept.nodes[id]); err != nil {
			return r, fmt.Errorf("cluster: restore: %w", err)
		}
	}
	// The assignment comes last, since its transaction also begins the next generation, by
	// which processes take over the rest.
	if r.Epoch, err = restoreAssignment(ctx, c, kept, have, of, r); err != nil {
		return r, fmt.Errorf("cluster: restore: %w", err)
	}
	return r, nil
}

// looked returns what etcd has of the kinds of documents that etcd, the directories or
// processes know of, and the newest that processes keep. It waits until all processes have
// looked at etcd, and so have said what they keep.
func looked(ctx context.Context, c *cluster.Client, kept kept) (have *keyspace.Snapshot, of cluster.Remembered, err error) {
	for waited := false; ; waited = true {
		if of, _, err = c.Remembered(ctx); err != nil {
			return nil, of, err
		}
		kinds, err := kinds(ctx, c)
		if err != nil {
			return nil, of, err
		}
		for _, kind := range slices.AppendSeq(slices.Collect(maps.Keys(kept.docs)), maps.Keys(of.Newest)) {
			if !slices.Contains(kinds, kind) && kind != cluster.MapKind && keyspace.ValidID(kind) == nil {
				kinds = append(kinds, kind)
			}
		}
		if have, err = had(ctx, c, kinds); err != nil || waited {
			return have, of, err
		}
		left := c.Relist() * 6 / 5       // all processes list what they follow within Relist; a fifth more is for the answers
		if b := have.Setback; b != nil { // a process has found this, and since then all look
			left -= max(0, time.Since(b.When))
		}
		if err = wait.For(ctx, left); err != nil {
			return nil, of, err
		}
	}
}

// kinds returns the kinds of all documents that etcd has. Kinds that no directory knows are
// among them, since a version that serves by such a document may lack its bytes too.
func kinds(ctx context.Context, c *cluster.Client) (kinds []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTime())
	defer cancel()
	prefix := c.Prefix() + cluster.DocsPrefix
	got, err := c.Etcd().Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, cluster.Away(err)
	}
	for _, kv := range got.Kvs {
		kind, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/")
		if keyspace.ValidID(kind) == nil && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// had reads the secrets and the documents of some kinds from etcd, by key behind the
// cluster's prefix. It does not read everything, since the bytes of versions are large.
func had(ctx context.Context, c *cluster.Client, kinds []string) (*keyspace.Snapshot, error) {
	prefixes := []string{cluster.SecretsPrefix}
	for _, kind := range kinds {
		prefixes = append(prefixes, documents.Prefix(kind))
	}
	var have *keyspace.Snapshot
	values := map[string]keyspace.Value{}
	for _, prefix := range prefixes {
		s, err := c.List(ctx, prefix)
		if err != nil {
			return nil, err
		}
		for name, v := range s.Values {
			values[prefix+name] = v
		}
		if have == nil { // keep the oldest revision, so that what is written meanwhile counts as newer
			have = s
		}
	}
	have.Values = values
	return have, nil
}

// holds reports whether etcd has all that the directories know of, so that only bytes can be
// missing.
func holds(ctx context.Context, c *cluster.Client, k kept, have *keyspace.Snapshot) (bool, error) {
	if k.keyspace != have.Keyspace { // a later generation: a restoration brought all back before
		return have.Keyspace.Generation > k.keyspace.Generation, nil
	}
	if have.Setback != nil || k.back[have.Keyspace] || k.origin.Keyspace == have.Keyspace && have.Revision < k.origin.Revision {
		return false, nil
	}
	for kind, all := range k.docs {
		d, now := documents.Of(c, kind), ofKind(have, kind)
		for _, docs := range all {
			if docs.Origin.Keyspace != have.Keyspace {
				continue
			}
			if documents.Older(docs.Documents, now) {
				return false, nil
			}
			if forked, err := d.ForkedFrom(ctx, docs.Documents, docs.Origin, now); forked || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// ofKind returns s with only the documents of a kind, by name.
func ofKind(s *keyspace.Snapshot, kind string) *keyspace.Snapshot {
	one := *s
	one.Values = map[string]keyspace.Value{}
	prefix := documents.Prefix(kind)
	for key, v := range s.Values {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			one.Values[name] = v
		}
	}
	return &one
}

// newest returns, of what several directories keep of a kind, the newest. The higher
// generation is newer. Within one keyspace, what has a document that etcd lacks is newer
// than what has none: the latter may have been read after etcd went back and its revisions
// had caught up.
func newest(all []documents.LastGood, have *keyspace.Snapshot) documents.LastGood {
	more := func(d documents.LastGood) int {
		for name, doc := range d.Documents {
			if d.Origin.Keyspace == have.Keyspace && have.Values[name].Version < doc.Version {
				return 1
			}
		}
		return 0
	}
	return slices.MaxFunc(all, func(a, b documents.LastGood) int {
		return cmp.Or(cmp.Compare(a.Origin.Keyspace.Generation, b.Origin.Keyspace.Generation), cmp.Compare(more(a), more(b)), a.Origin.Compare(b.Origin))
	})
}

// age is how old a document in etcd is, compared with what a directory keeps of it.
type age int

const (
	ofBackup age = iota // older: it came with a backup of etcd
	since               // newer: it was written since
	unsure              // that cannot be told
)

// ageOf returns how old a document in etcd is that differs from what a directory keeps (see
// DESIGN.md of package cluster). Now is what etcd has, doc what the directory has, and from
// is the etcd that the directory's process read last.
func ageOf(s *keyspace.Snapshot, now keyspace.Value, doc documents.Document, from keyspace.Origin) age {
	switch {
	case s.Keyspace != from.Keyspace && !s.Keyspace.Before(from.Keyspace):
		if from.Keyspace.Generation == s.Keyspace.Generation {
			return since // etcd was empty and began anew, so all that it has was written since
		}
		return unsure
	case s.Keyspace == from.Keyspace && now.Version >= doc.Version:
		return since
	case s.Setback.Since(s.Keyspace, from.Keyspace) && now.Version > s.Setback.At:
		return since
	}
	return ofBackup
}

// restoring is the plan of a restoration for one document.
type restoring struct {
	kind   string
	doc    documents.Document // as it is to be
	dir    string             // that it comes from; "": it stays as etcd has it
	now    keyspace.Value     // what etcd has
	there  bool               // etcd has the document
	put    bool               // it is to be written as the directory has it
	undone []string           // versions that this removes; see Restored.Undone

	ledger  *ledger.Ledger       // the document as a ledger; nil: it is not one
	comes   []foundBody          // versions whose bytes etcd lacks and a directory has
	nowhere []ledger.Edition     // versions whose bytes neither etcd nor a directory has
	parts   artefacts.PartsThere // the bytes that etcd has of the artefact's versions
}

// plans returns a plan for each document of the directories and of etcd, in order.
func (k *kept) plans(have *keyspace.Snapshot, r *Restored) (plans []*restoring) {
	knows := map[string]documents.LastGood{} // by kind
	for kind, known := range k.docs {
		has := ofKind(have, kind)
		docs := newest(known, has)
		knows[kind] = docs
		for _, doc := range docs.Documents {
			now, there := has.Values[doc.Name]
			p := &restoring{kind: kind, doc: doc, dir: docs.Dir, now: now, there: there}
			p.judge(has, docs.Origin, r)
			plans = append(plans, p)
		}
	}
	for _, p := range asTheyAre(have) {
		docs, known := knows[p.kind]
		if _, has := docs.Documents[p.doc.Name]; has {
			continue
		}
		plans = append(plans, p)
		removed := documents.Document{Version: docs.Origin.Revision + 1} // it was gone by that revision
		if known && ageOf(have, p.now, removed, docs.Origin) == ofBackup {
			r.Again = append(r.Again, p.id())
		}
	}
	inOrder(plans)
	return plans
}

// asTheyAre returns plans by which all documents stay as etcd has them.
func asTheyAre(have *keyspace.Snapshot) (plans []*restoring) {
	for key, now := range have.Values {
		of, isDocument := strings.CutPrefix(key, cluster.DocsPrefix)
		kind, name, _ := strings.Cut(of, "/")
		if isDocument && keyspace.ValidID(name) == nil {
			plans = append(plans, &restoring{kind: kind, doc: documents.Document{Name: name, Body: string(now.Data)}, now: now, there: true})
		}
	}
	inOrder(plans)
	return plans
}

// inOrder sorts plans by kind and name.
func inOrder(plans []*restoring) {
	slices.SortFunc(plans, func(a, b *restoring) int { return cmp.Compare(a.id(), b.id()) })
}

// id returns the kind and the name of the document.
func (p *restoring) id() string { return p.kind + " " + p.doc.Name }

// judge decides whether a document is to be written as the directory keeps it, or is to
// stay as etcd has it.
func (p *restoring) judge(have *keyspace.Snapshot, from keyspace.Origin, r *Restored) {
	if p.there && documents.HoldsBody(p.now.Data, p.doc.Body) {
		return
	}
	if p.put = true; !p.there {
		return
	}
	kept, has := ledger.ParseBoth(p.doc.Body, string(p.now.Data))
	stays := &r.Stays
	switch ageOf(have, p.now, p.doc, from) {
	case ofBackup:
		return
	case since:
		if kept != nil && has != nil && has.Precedes(kept) {
			p.undone = kept.Lacks(p.id(), has) // a change that was refused halfway
			return
		}
	case unsure:
		stays = &r.Unsure
	}
	p.put, p.doc.Body = false, string(p.now.Data)
	*stays = append(*stays, p.id())
	r.serves(p.id(), kept, has)
}

// restoreDocuments carries out the plans: it writes the bytes that etcd lacks, the
// documents that it lacks, and those that it has in an older form, from its backup.
func restoreDocuments(ctx context.Context, c *cluster.Client, plans []*restoring, older bool, r *Restored) error {
	for _, p := range plans {
		if err := restoreDocument(ctx, c, p, older, r); err != nil {
			return fmt.Errorf("%s: %w", p.id(), err)
		}
	}
	for _, list := range [][]string{r.Stays, r.Unsure, r.Again, r.Lacks, r.Undone} {
		slices.Sort(list)
	}
	return nil
}

// restoreDocument carries out one plan. If a command has written the document meanwhile, the
// document stays as the command wrote it.
func restoreDocument(ctx context.Context, c *cluster.Client, p *restoring, older bool, r *Restored) error {
	if err := uploadBodies(ctx, c, p, r); err != nil {
		return err
	}
	if !p.mend(older, r) && !p.put {
		return nil
	}
	d := documents.Of(c, p.kind)
	put, err := d.PutIf(ctx, p.doc.Name, []byte(p.doc.Body), clientv3.Compare(clientv3.ModRevision(d.Key(p.doc.Name)), "=", p.now.Version))
	switch {
	case err != nil:
		return err
	case !put: // a command has written it meanwhile
		r.Stays = append(r.Stays, p.id())
	case p.put:
		b := Brought{Document: p.id(), Dir: p.dir, Revision: p.doc.Version}
		if p.ledger != nil {
			b.Serves = p.ledger.Serves()
		}
		r.Documents = append(r.Documents, b)
		r.Undone = append(r.Undone, p.undone...)
	}
	return nil
}

// serves notes which version serves of a document that stays as etcd has it, if it is an
// artefact.
func (r *Restored) serves(id string, kept, has *ledger.Ledger) {
	if kept == nil || has == nil {
		return
	}
	if r.Serves == nil {
		r.Serves = map[string]Pointers{}
	}
	r.Serves[id] = Pointers{Now: has.Serves(), Kept: kept.Serves()}
}

// restoreKnown notes in etcd that a node of the assignment has been registered before, unless
// that is noted.
func restoreKnown(ctx context.Context, c *cluster.Client, id millrace.NodeID, n topology.Node) error {
	n.ID = id
	body, err := json.Marshal(topology.Registration{Node: n})
	if err != nil {
		return err
	}
	key := c.Prefix() + cluster.MapPrefix + "known/" + string(id)
	_, err = c.Etcd().Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, string(body))).Commit()
	return err
}

// restoreAssignment writes the assignment under the next epoch, or keeps a newer one that
// etcd has, and returns the epoch. The same transaction begins the keyspace's next
// generation.
func restoreAssignment(ctx context.Context, c *cluster.Client, kept kept, have *keyspace.Snapshot, remembers cluster.Remembered, r Restored) (int64, error) {
	p, err := steering.ReadPresent(ctx, c)
	if err != nil {
		return 0, err
	}
	a := kept.assignment
	if p.Assignment != nil && p.Assignment.Epoch > a.Epoch {
		a = *p.Assignment // a coordinator has assigned since
	} else {
		kept.assignment.Follow(&a)
		if newest := remembers.Newest[cluster.MapKind].Revision; newest > a.Epoch { // so that processes which keep that take this one
			a.Epoch, a.AllowShrink = newest, true
		}
		a.Epoch++
	}
	body, err := json.Marshal(a)
	if err != nil {
		return 0, err
	}
	of := kept.keyspace
	generation := max(of.Generation, have.Keyspace.Generation)
	if have.Setback != nil {
		generation = max(generation, have.Setback.Generation)
	}
	if of.Before(remembers.Keyspace) {
		generation = max(generation, remembers.Keyspace.Generation)
	}
	next := of.Next(1 + generation)
	noted, err := c.Noted(audit.Entry{Act: cluster.RestoredAct, On: "what etcd had lost", Before: p.String(), After: fmt.Sprintf("%s; %d documents, bytes of %d versions, %d secrets", steering.AssignmentText(&a), len(r.Documents), r.BytesOf(), r.Secrets)})
	if err != nil {
		return 0, err
	}
	put, err := c.Etcd().Txn(ctx).If(steering.Still(c, p)...).Then(append(append(steering.AssignOps(c, body), noted...),
		clientv3.OpPut(c.PartitionsKey(), strconv.Itoa(partition.Count)),
		clientv3.OpPut(c.KeyspaceKey(), next.String()), clientv3.OpDelete(c.SetbackKey()), clientv3.OpDelete(c.RememberedKey()),
	)...).Commit()
	if err != nil {
		return 0, err
	}
	if !put.Succeeded {
		return 0, fmt.Errorf("%w: somebody assigned at the same time", steering.ErrEpoch)
	}
	return a.Epoch, nil
}

// kept is what the directories keep of a cluster.
type kept struct {
	origin     keyspace.Origin                   // of the newest map
	keyspace   keyspace.Name                     // the newest that a map or a document is of
	assignment topology.Assignment               // of the newest map
	nodes      map[millrace.NodeID]topology.Node // of all maps
	docs       map[string][]documents.LastGood   // by kind, from each directory
	secrets    map[string][]byte                 // by name
	back       map[keyspace.Name]bool            // whether a process saw etcd go back in a keyspace
	dirs       []KeptDir
	empty      []string // directories in which there is nothing, as after the loss of a disk
}

// readKept reads what all directories keep. It returns an error if none of them has a map.
func readKept(dirs []string) (kept, error) {
	k := kept{nodes: map[millrace.NodeID]topology.Node{}, docs: map[string][]documents.LastGood{}, secrets: map[string][]byte{}, back: map[keyspace.Name]bool{}}
	for _, dir := range dirs {
		switch keeps, err := k.read(dir); {
		case err != nil:
			return k, fmt.Errorf("cluster: restore: %w", err)
		case !keeps:
			k.empty = append(k.empty, dir)
		}
	}
	switch {
	case len(dirs) == 0:
		return k, errors.New("cluster: restore: no directory is named")
	case len(k.dirs) == 0:
		return k, fmt.Errorf("cluster: restore: nothing is kept in %s; name directories of brokers, index nodes and coordinators of this cluster", strings.Join(k.empty, ", "))
	case k.assignment.Epoch == 0:
		return k, fmt.Errorf("cluster: restore: no map is kept in %s; name the directory of a broker, an index node or a coordinator of this cluster, too", strings.Join(dirs, ", "))
	}
	return k, nil
}

// read reads what is kept in a directory, and reports whether there is anything. There may be
// documents without a map, since not every role follows the map.
func (k *kept) read(dir string) (keeps bool, err error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	newest, err := k.readMap(dir)
	if keeps = err == nil; err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	read := KeptDir{Dir: dir}
	for _, f := range files {
		file := filepath.Join(dir, f.Name())
		if info, err := f.Info(); err == nil && info.ModTime().After(read.Written) {
			read.Written = info.ModTime()
		}
		if name, ok := strings.CutPrefix(f.Name(), "secret-"); ok {
			secret, err := datadir.Read(file, secrets.Size)
			if err != nil || len(secret) != secrets.Size {
				return false, fmt.Errorf("%s is no secret: %v", file, err)
			}
			if _, there := k.secrets[name]; !there || newest {
				k.secrets[name] = secret
			}
			keeps = true
		}
		if strings.HasPrefix(f.Name(), "bodies-") { // findBodies looks for them by name
			bodies, _ := os.ReadDir(file)
			keeps = keeps || len(bodies) > 0
		}
		kind, ok := strings.CutPrefix(strings.TrimSuffix(f.Name(), ".json"), "docs-")
		if !ok || !strings.HasSuffix(f.Name(), ".json") {
			continue
		}
		docs, err := documents.ReadFile(file)
		if err != nil {
			return false, fmt.Errorf("%s: %w", file, err)
		}
		k.heard(docs.Origin)
		docs.Dir = dir
		k.docs[kind] = append(k.docs[kind], docs)
		keeps = true
	}
	if keeps {
		k.dirs = append(k.dirs, read)
	}
	return keeps, nil
}

// readMap reads the map that is kept in a directory, and reports whether it is the newest
// so far.
func (k *kept) readMap(dir string) (newest bool, err error) {
	m, origin, err := topology.LoadMap(dir)
	if err != nil {
		return false, err
	}
	// Within one keyspace the map with the higher epoch is newer, whatever its revision: a
	// process goes on taking assignments from an etcd that went back.
	newest = cmp.Or(cmp.Compare(origin.Keyspace.Generation, k.origin.Keyspace.Generation), cmp.Compare(m.Epoch(), k.assignment.Epoch), origin.Compare(k.origin)) > 0
	if newest || k.assignment.Epoch == 0 {
		k.assignment = m.Assignment()
	}
	if origin.Compare(k.origin) > 0 {
		k.origin = origin
	}
	k.heard(origin)
	for _, n := range m.Nodes() {
		k.nodes[n.ID] = n
	}
	return newest, nil
}

// heard notes the etcd that a process read last, and whether the process saw it go back.
func (k *kept) heard(o keyspace.Origin) {
	k.back[o.Keyspace] = k.back[o.Keyspace] || o.Back > 0
	if o.Keyspace.Generation > k.keyspace.Generation {
		k.keyspace = o.Keyspace
	}
}

// lacked returns, as clauses, what processes keep that is newer than all that the directories
// and etcd have.
func (k *kept) lacked(r cluster.Remembered, have *keyspace.Snapshot, epoch int64) (all []string) {
	for _, kind := range slices.Sorted(maps.Keys(r.Newest)) {
		n := r.Newest[kind]
		by := line.Of(n.By)
		if kind == cluster.MapKind {
			if newest := max(k.assignment.Epoch, epoch); newest < n.Revision {
				all = append(all, fmt.Sprintf("assignment %d, which is kept in %s (here it is %d)", n.Revision, by, newest))
			}
			continue
		}
		now := ofKind(have, kind)
		if now.Keyspace == r.Keyspace && now.Values[n.Name].Version == n.Revision {
			continue
		}
		// Only the directories count here: what etcd has itself may have been written after
		// it went back, by processes that remembered nothing.
		var newest int64
		for _, docs := range k.docs[kind] {
			if docs.Origin.Keyspace == r.Keyspace {
				newest = max(newest, documents.NewestLacked(docs.Documents, now).Revision)
			}
		}
		if newest < n.Revision {
			all = append(all, fmt.Sprintf("%s %s of revision %d, which is kept in %s", kind, line.Of(n.Name), n.Revision, by))
		}
	}
	return all
}

const nameAllDirs = "name the data directories of all brokers, coordinators and index nodes that you can reach"

// refuseOlder returns an ErrOlderDirs if the directories are older than what processes
// keep, by their generation or within one keyspace.
func (k *kept) refuseOlder(r cluster.Remembered, have *keyspace.Snapshot, epoch int64) error {
	if b := have.Setback; b != nil && b.Generation > k.keyspace.Generation {
		return cluster.Refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", nameAllDirs, "at %s a process remembered restoration %d of etcd, and these directories know of %d", b.When.Format(time.RFC3339), b.Generation-1, k.keyspace.Generation-1)
	}
	if k.keyspace.Before(r.Keyspace) {
		return cluster.Refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", nameAllDirs, "a process remembers restoration %d of etcd, and these directories know of %d", r.Keyspace.Generation-1, k.keyspace.Generation-1)
	}
	if k.keyspace != r.Keyspace {
		return nil
	}
	if all := k.lacked(r, have, epoch); len(all) > 0 {
		return cluster.Refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", nameAllDirs, "processes remember what is newer than all that is in these directories: %s", strings.Join(all, "; "))
	}
	return nil
}
