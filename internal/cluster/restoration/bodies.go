package restoration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/line"
)

// Some documents are ledgers: they name the versions of an artefact, and which one serves.
// The versions' bytes (bodies) are kept apart. A restoration brings back the bytes before
// the ledger that names them, and lets no version serve without its bytes. A process that
// follows ledgers keeps the bytes of all versions that serve, so that the directory of any
// one process is enough for the ledgers that it knows of.

// foundBody is a version and the directory that has its bytes.
type foundBody struct {
	ledger.Edition
	dir string
}

// findBodies looks in the directories for the bytes of versions that the planned documents
// name and etcd lacks. It sets ledger, parts, comes and nowhere of each plan.
func findBodies(ctx context.Context, c *cluster.Client, plans []*restoring, dirs []string) error {
	for _, p := range plans {
		l, err := ledger.Parse(p.doc.Body)
		if err != nil {
			continue // it is not a ledger, so it has no versions
		}
		p.ledger = l
		if p.parts, err = artefacts.Of(c, p.kind).PartsThere(ctx, p.doc.Name+"/"); err != nil {
			return fmt.Errorf("cluster: restore: %s: %w", p.id(), err)
		}
		for _, e := range l.Versions {
			if p.inEtcd(e) {
				continue
			}
			at := slices.IndexFunc(dirs, func(dir string) bool {
				_, err := documents.ReadBody(documents.BodyFile(dir, p.kind, e.Sum), e)
				return err == nil
			})
			if at < 0 {
				p.nowhere = append(p.nowhere, e)
				continue
			}
			p.comes = append(p.comes, foundBody{e, dirs[at]})
		}
	}
	return nil
}

// inEtcd reports whether etcd has the bytes of a version of the planned document.
func (p *restoring) inEtcd(e ledger.Edition) bool { return p.parts.Hold(p.doc.Name, e) }

// serving returns the version that is to serve, and true, if neither etcd nor a directory has
// its bytes. Otherwise it returns false.
func (p *restoring) serving() (e ledger.Edition, gone bool) {
	at := slices.IndexFunc(p.nowhere, func(e ledger.Edition) bool { return e.Sum == p.ledger.Serving })
	if at < 0 {
		return e, false
	}
	return p.nowhere[at], true
}

// lackedBodies returns an ErrOlderDirs if a version is to serve whose bytes are nowhere. The
// error says which process keeps them, as far as that is known.
func lackedBodies(plans []*restoring, of cluster.Remembered) error {
	var all []string
	for _, p := range plans {
		e, gone := p.serving()
		if !gone {
			continue
		}
		where := p.whereElse(e)
		if by := of.Bodies[e.Sum]; by != "" {
			where = "they are kept in " + line.Of(by)
		} else if p.put { // all processes have looked by now, and one that keeps it would say so
			where = "no process that runs has said that it keeps them; " + where
		}
		all = append(all, fmt.Sprintf("%s (%s)", p.nameOf(e), where))
	}
	if all == nil {
		return nil
	}
	return cluster.Refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", nameAllDirs, "the bytes of versions that serve are in none of these directories, nor in etcd: %s", strings.Join(all, "; "))
}

// whereElse says how to know a directory that has the bytes of a version.
func (p *restoring) whereElse(e ledger.Edition) string {
	return "a directory that has them has a file " + documents.BodyFile("", p.kind, e.Sum)
}

// nameOf names a version with its kind.
func (p *restoring) nameOf(e ledger.Edition) string {
	return p.kind + " " + artefacts.Version{Name: p.doc.Name, Version: e.Version, Sum: e.Sum}.String()
}

// restoreBytes restores bytes alone, to an etcd that has all documents. The keyspace stays
// the same, since no process has to give up or take over anything else. With older,
// versions whose bytes are nowhere are dropped.
func restoreBytes(ctx context.Context, c *cluster.Client, plans []*restoring, older bool, r *Restored) error {
	var nowhere []string
	comes := 0
	for _, p := range plans {
		comes += len(p.comes)
		for _, e := range p.nowhere {
			nowhere = append(nowhere, fmt.Sprintf("%s (%s)", p.nameOf(e), p.whereElse(e)))
		}
	}
	switch {
	case comes > 0 || older && nowhere != nil:
	case nowhere != nil:
		return cluster.Refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", nameAllDirs+", or push or define again what is needed", "etcd has all documents that these directories know of. It lacks the bytes of versions that do not serve, and so do these directories; nothing is restored: %s", strings.Join(nowhere, "; "))
	default:
		return ErrNothingLost
	}
	after := fmt.Sprintf("bytes of %d versions", comes)
	if older && nowhere != nil {
		after += fmt.Sprintf("; %d versions without bytes dropped", len(nowhere))
	}
	if err := c.Note(ctx, audit.Entry{Act: cluster.RestoredAct, On: "bytes that etcd lacked", After: after}); err != nil {
		return fmt.Errorf("cluster: restore: %w", err)
	}
	if err := restoreDocuments(ctx, c, plans, older, r); err != nil {
		return fmt.Errorf("cluster: restore: %w", err)
	}
	return nil
}

// BytesOf returns for how many versions the bytes were restored.
func (r *Restored) BytesOf() (n int) {
	for _, b := range r.Bytes {
		n += len(b.Versions)
	}
	return n
}

// noteBytes notes that the bytes of a version were restored from a directory.
func (r *Restored) noteBytes(document, version, dir string) {
	if n := len(r.Bytes); n > 0 && r.Bytes[n-1].Document == document && r.Bytes[n-1].Dir == dir {
		r.Bytes[n-1].Versions = append(r.Bytes[n-1].Versions, version)
		return
	}
	r.Bytes = append(r.Bytes, BroughtBytes{document, []string{version}, dir})
}

// uploadBodies writes to etcd the bytes of a document's versions that it lacks and a
// directory has.
func uploadBodies(ctx context.Context, c *cluster.Client, p *restoring, r *Restored) error {
	a := artefacts.Of(c, p.kind)
	for _, found := range p.comes {
		body, err := documents.ReadBody(documents.BodyFile(found.dir, p.kind, found.Sum), found.Edition)
		if err != nil {
			return err
		}
		if err := a.Upload(ctx, artefacts.Version{Name: p.doc.Name, Version: found.Version, Sum: found.Sum}, body); err != nil {
			return err
		}
		r.noteBytes(p.id(), found.Version, found.dir)
	}
	return nil
}

// mend removes from a ledger the versions whose bytes are nowhere, and notes them in r. If
// one of them was to serve, the version that served before it serves. If none did, the
// document stays as etcd has it, provided that a version with its bytes serves there.
//
// A document that is not to be written keeps these versions, unless older is set, since other
// directories may have the bytes. mend reports whether it changed the document.
func (p *restoring) mend(older bool, r *Restored) bool {
	lost, gone := p.serving()
	for _, e := range p.nowhere {
		if !gone || e != lost {
			r.Lacks = append(r.Lacks, p.nameOf(e))
		}
		if older || p.put {
			r.Dropped++
			p.ledger.Drop(e, "a restoration: its bytes are gone")
		}
	}
	if p.nowhere == nil || !older && !p.put {
		return false
	}
	if gone && len(p.ledger.Before) > 0 {
		p.ledger.Rollback(fmt.Sprintf("a restoration: the bytes of version %s are gone", lost.Version))
	}
	stays := gone && p.ledger.Serving == "" && p.put && p.keepEtcds()
	if gone {
		r.Lost = append(r.Lost, Lost{p.id() + " " + lost.Version, p.ledger.Serves()})
	}
	if stays {
		return false
	}
	body, err := p.ledger.Encode()
	if err != nil {
		return false // it cannot be too large, since it has become smaller
	}
	p.doc.Body = body
	return true
}

// keepEtcds plans that a document stays as etcd has it, if a version serves there and etcd
// has its bytes. It reports whether it did.
func (p *restoring) keepEtcds() bool {
	has, err := ledger.Parse(string(p.now.Data))
	if err != nil {
		return false
	}
	if e, serves := has.Find(has.Serving); !serves || !p.inEtcd(e) {
		return false
	}
	p.ledger, p.put = has, false
	return true
}
