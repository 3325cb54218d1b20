package feeds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// editions are definitions that have served, or that a later page needed. All pages of a
// request are made by the definition of its first page.
type editions struct {
	mu struct {
		sync.Mutex
		kept []Feed // at most maxEditions; the one that was read last is the last
	}
	reads singleflight.Group // of definitions that are not kept, by version and checksum
}

const (
	maxEditions = 256             // definitions that are kept; the file of each has at most maxFeedBytes
	editionWait = 2 * time.Second // how long a page waits for a definition to be read
)

// keep remembers a definition for pages.
func (e *editions) keep(f Feed) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.kept = slices.DeleteFunc(e.mu.kept, func(old Feed) bool { return old.edition == f.edition })
	e.mu.kept = append(e.mu.kept, f)
	if n := len(e.mu.kept) - maxEditions; n > 0 {
		e.mu.kept = slices.Delete(e.mu.kept, 0, n)
	}
}

// find returns a definition that is kept, and false if it is not.
func (e *editions) find(v artefacts.Version) (Feed, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.IndexFunc(e.mu.kept, func(f Feed) bool { return f.edition == v }); i >= 0 {
		return e.mu.kept[i], true
	}
	return Feed{}, false
}

// Edition returns the definition that made the first page of a feed. now is the feed as it
// serves at present. What now forbids holds at once, also for later pages. If now is private,
// a page of another definition is refused, since it could show records that now drops. A page
// is also refused if its definition is gone.
func (b *Book) Edition(now Feed, c *pagetoken.Cursor) (Feed, error) {
	v := artefacts.Version{Name: now.Name, Version: c.Feed, Sum: c.FeedSum}
	if now.edition.Version == c.Feed && c.Keys.Definition(now.edition.Sum, now.Private) == c.FeedSum {
		return now, nil
	}
	if now.Private {
		return Feed{}, pagetoken.Refuse("feed %s is private, and its definition is another than that of the first page", v.Name)
	}
	f, there := b.fixed[v.Name]
	if there = there && f.edition == v; !there && v.Version != "" && b.defs != nil && slices.Contains(b.defs.All()[v.Name], v) {
		var err error
		if f, err = b.reread(v); err != nil {
			return Feed{}, &millrace.Error{
				Reason: millrace.ReasonUnavailable, Field: "page_token", Detail: fmt.Sprintf("the definition %s, which made the first page, cannot be read now: %v", v, err),
				WayOut: "try again, or ask for the first page again, without a token",
			}
		}
		there = true
	}
	if !there && b.ofAnother(v) {
		return Feed{}, pagetoken.Refuse("it is of another feed than %s", v.Name)
	}
	if !there {
		return Feed{}, pagetoken.Refuse("no definition that feed %s has made the first page: it is of another feed, or its definition is no longer there", v.Name)
	}
	f.Forbid = f.Forbids().Or(now.Forbids())
	return f, nil
}

// ofAnother reports whether a definition, by its version and checksum, is known to be
// another feed's. (A page token does not name its feed.) It never finds the definition of a
// private feed, since page tokens carry its checksum hashed with a key.
func (b *Book) ofAnother(v artefacts.Version) bool {
	for name, f := range b.fixed {
		if name != v.Name && f.edition.Version == v.Version && f.edition.Sum == v.Sum {
			return true
		}
	}
	if b.defs == nil {
		return false
	}
	for name, all := range b.defs.All() {
		if name != v.Name && slices.Contains(all, artefacts.Version{Name: name, Version: v.Version, Sum: v.Sum}) {
			return true
		}
	}
	return false
}

// reread returns a version that does not serve. One goroutine reads it for all requests
// that wait for it, and goes on if they stop waiting after editionWait.
func (b *Book) reread(v artefacts.Version) (Feed, error) {
	if f, ok := b.earlier.find(v); ok {
		return f, nil
	}
	read := b.earlier.reads.DoChan(v.String()+v.Sum, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), definitionTime)
		defer cancel()
		body, err := b.defs.Body(ctx, v)
		if err != nil {
			return nil, err
		}
		f, err := parseVersion(v, body)
		if err == nil {
			b.earlier.keep(f)
		}
		return f, err
	})
	select {
	case r := <-read:
		f, _ := r.Val.(Feed)
		return f, r.Err
	case <-time.After(editionWait):
		return Feed{}, fmt.Errorf("it was not read within %s", editionWait)
	}
}

// digest returns a checksum that tells apart the definitions that a broker is built or
// configured with: 16 hexadecimal digits.
func (f Feed) digest() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v", f))
	return hex.EncodeToString(sum[:8])
}
