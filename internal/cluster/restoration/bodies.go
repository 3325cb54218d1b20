package restoration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
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
		if p.parts, err = artefacts.Of(c, p.kind).PartsThere(ctx, p.doc.Name); err != nil {
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

func (p *restoring) inEtcd(e ledger.Edition) bool {
	return p.parts[e.Sum] >= documents.PartCount(e.Bytes)
}

// serving returns the version that is to serve, if its bytes are nowhere.
func (p *restoring) serving() (e ledger.Edition, gone bool) {
	at := slices.IndexFunc(p.nowhere, func(e ledger.Edition) bool { return e.Sum == p.ledger.Serving })
	if at < 0 {
		return e, false
	}
	return p.nowhere[at], true
}

// lacksBytes reports whether etcd lacks bytes that a directory has, or that serve.
func (p *restoring) lacksBytes() bool {
	_, gone := p.serving()
	return gone || len(p.comes) > 0
}

// lackedBodies refuses to let something serve without its bytes, and says who keeps them.
func lackedBodies(plans []*restoring, of cluster.Remembered) error {
	var all []string
	for _, p := range plans {
		e, gone := p.serving()
		if !gone {
			continue
		}
		where := "no process that runs has said that it keeps them"
		if by := of.Bodies[e.Sum]; by != "" {
			where = "they are kept in " + line.Of(by)
		}
		all = append(all, fmt.Sprintf("%s %s (%s)", p.kind, artefacts.Version{Name: p.doc.Name, Version: e.Version, Sum: e.Sum}, where))
	}
	if all == nil {
		return nil
	}
	return cluster.Refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", nameAllDirs, "the bytes of versions that serve are in none of these directories, nor in etcd: %s", strings.Join(all, "; "))
}

// bring writes the bytes that etcd lacks of a document's versions.
func bring(ctx context.Context, c *cluster.Client, p *restoring) error {
	a := artefacts.Of(c, p.kind)
	for _, found := range p.comes {
		body, err := documents.ReadBody(documents.BodyFile(found.dir, p.kind, found.Sum), found.Edition)
		if err != nil {
			return err
		}
		if err := a.Upload(ctx, artefacts.Version{Name: p.doc.Name, Version: found.Version, Sum: found.Sum}, body); err != nil {
			return err
		}
	}
	return nil
}

// mend takes the versions out of a ledger whose bytes are nowhere, lets what served
// before serve in place of one of them, and tells. Where nothing did, etcd keeps what
// it has, if that is whole. It reports whether the document has changed.
func (p *restoring) mend(r *Restored) bool {
	lost, gone := p.serving()
	for _, e := range p.nowhere {
		p.ledger.Drop(e, "a restoration: its bytes are gone")
		if !gone || e != lost {
			r.Lacks = append(r.Lacks, p.kind+" "+artefacts.Version{Name: p.doc.Name, Version: e.Version, Sum: e.Sum}.String())
		}
	}
	if gone && len(p.ledger.Before) > 0 {
		p.ledger.Rollback(fmt.Sprintf("a restoration: the bytes of version %s are gone", lost.Version))
	}
	stays := gone && p.ledger.Serving == "" && p.put && p.keepEtcds()
	if gone {
		r.Lost = append(r.Lost, Lost{p.id() + " " + lost.Version, p.ledger.Serves()})
	}
	if stays || p.nowhere == nil {
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
