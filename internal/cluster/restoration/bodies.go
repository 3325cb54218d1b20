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

// A restoration brings the bytes of versions back before the ledgers that name them,
// and none that serves without its bytes. A process that follows ledgers keeps the
// bytes of all that serve, so that any directory is enough for those it knows of.

// foundBody is where the bytes of a version are.
type foundBody struct {
	ledger.Edition
	dir string
}

// findBodies looks for the bytes that etcd lacks of what it is to have.
func findBodies(ctx context.Context, c *cluster.Client, plans []*restoring, dirs []string) error {
	for _, p := range plans {
		l, err := ledger.Parse(p.doc.Body)
		if err != nil {
			continue // it has no versions
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

func (p *restoring) inEtcd(e ledger.Edition) bool { return p.parts.Hold(p.doc.Name, e) }

// serving returns the version that is to serve, if its bytes are nowhere.
func (p *restoring) serving() (e ledger.Edition, gone bool) {
	at := slices.IndexFunc(p.nowhere, func(e ledger.Edition) bool { return e.Sum == p.ledger.Serving })
	if at < 0 {
		return e, false
	}
	return p.nowhere[at], true
}

// lackedBodies refuses to let something serve without its bytes, and says who keeps them.
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
		} else if p.put { // who keeps it has looked, and says so
			where = "no process that runs has said that it keeps them; " + where
		}
		all = append(all, fmt.Sprintf("%s (%s)", p.nameOf(e), where))
	}
	if all == nil {
		return nil
	}
	return cluster.Refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", nameAllDirs, "the bytes of versions that serve are in none of these directories, nor in etcd: %s", strings.Join(all, "; "))
}

// whereElse says by what a directory is known that has the bytes of a version.
func (p *restoring) whereElse(e ledger.Edition) string {
	return "a directory that has them has a file " + documents.BodyFile("", p.kind, e.Sum)
}

// nameOf names a version with its kind.
func (p *restoring) nameOf(e ledger.Edition) string {
	return p.kind + " " + artefacts.Version{Name: p.doc.Name, Version: e.Version, Sum: e.Sum}.String()
}

// restoreBytes brings bytes alone, to an etcd that holds all documents: nobody has
// anything else to give up or to take over, and so the keyspace is the same as before.
// Where the older are meant, versions whose bytes are nowhere are dropped.
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

// BytesOf returns of how many versions bytes were brought.
func (r *Restored) BytesOf() (n int) {
	for _, b := range r.Bytes {
		n += len(b.Versions)
	}
	return n
}

// noteBytes notes that the bytes of a version were brought.
func (r *Restored) noteBytes(document, version, dir string) {
	if n := len(r.Bytes); n > 0 && r.Bytes[n-1].Document == document && r.Bytes[n-1].Dir == dir {
		r.Bytes[n-1].Versions = append(r.Bytes[n-1].Versions, version)
		return
	}
	r.Bytes = append(r.Bytes, BroughtBytes{document, []string{version}, dir})
}

// uploadBodies writes to etcd the bytes that it lacks of a document's versions.
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

// mend takes the versions out of a ledger whose bytes are nowhere, lets what served
// before serve in place of one of them, and tells. Where nothing did, etcd keeps what
// it has, if that is whole. A document that stays as etcd has it keeps them, unless the
// older are meant: other directories may have the bytes. It reports whether the document
// has changed.
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
		return false // it has become smaller
	}
	p.doc.Body = body
	return true
}

// keepEtcds leaves a document as etcd has it, if etcd has a version that serves, and
// its bytes.
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
