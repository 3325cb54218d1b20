// Package ledger has the record (ledger) that the cluster keeps of one artefact, such as a
// model or a feed definition: which versions there are, which serves, which served before,
// and who changed that. The bytes of the versions are elsewhere. Ledgers are values;
// nothing here calls etcd.
package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/line"
)

// The bounds of what is kept of one artefact.
const (
	maxEvents      = 100       // events of its history
	MaxVersions    = 32        // versions that are kept; only these can serve
	maxKeptBytes   = 128 << 20 // bytes of all its versions together
	maxServed      = 32        // versions that a rollback can go back through
	maxLedgerBytes = 128 << 10 // bytes of the ledger itself, encoded
	maxVersionLen  = 100       // bytes of a version's name
)

// Change is what an [Event] did.
type Change string

// The changes of an artefact.
const (
	Published  Change = "put"
	Served     Change = "serve"
	RolledBack Change = "rollback"
	Dropped    Change = "drop"
	Failed     Change = "condemn" // see [artefacts.Condemned.Condemn]; Who names the node, and says why it condemned
	Released   Change = "release" // may be used again after it was condemned, or after nodes died of it; see [artefacts.Condemned.Release]
)

// Event is a change of an artefact.
type Event struct {
	What    Change    `json:"what"`
	Version string    `json:"version"`
	Sum     string    `json:"sum"` // SHA-256 of the version's bytes, in hex; "": the event is about the whole artefact
	Who     string    `json:"who"`
	When    time.Time `json:"when"`
}

// Ledger is the record of one artefact; it is stored as a document in etcd. Every change
// replaces it whole, and only if nobody else has changed it since. So the version that
// serves, the versions and the history always agree.
type Ledger struct {
	Format   int       `json:"format"`             // 1
	Serving  string    `json:"serving,omitempty"`  // a version's sum; "": none serves
	Before   []string  `json:"before,omitempty"`   // sums of what served before, newest last
	Versions []Edition `json:"versions,omitempty"` // in the order of their publication
	History  []Event   `json:"history"`            // oldest first

	At  int64 `json:"-"` // the revision of etcd that wrote it; 0: none
	Bad error `json:"-"` // why the ledger of revision At cannot be read; the other fields are then the last one that could
}

// format is the number of the encoding of a [Ledger].
const format = 1

// Edition is a version that is kept.
type Edition struct {
	Version string `json:"version"` // its name
	Sum     string `json:"sum"`     // SHA-256 of its bytes, in hex
	Bytes   int    `json:"bytes"`   // how many there are
}

// Parse reads a ledger and refuses one that contradicts itself.
func Parse(body string) (*Ledger, error) {
	if len(body) > maxLedgerBytes {
		return nil, fmt.Errorf("%d bytes are no ledger", len(body))
	}
	var l Ledger
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return nil, fmt.Errorf("it is no ledger of versions: %w", err)
	}
	if l.Format != format || len(l.Versions) > MaxVersions || len(l.History) > maxEvents || len(l.Before) > maxServed {
		return nil, fmt.Errorf("it is no ledger of format %d", format)
	}
	seen := map[string]bool{}
	for _, e := range l.Versions {
		if err := CheckVersion(e.Version); err != nil {
			return nil, err
		}
		if !IsSum(e.Sum) || e.Bytes < 1 || e.Bytes > keyspace.MaxPartedBytes || seen[e.Sum] || seen["v "+e.Version] {
			return nil, fmt.Errorf("version %q is malformed or there twice", e.Version)
		}
		seen[e.Sum], seen["v "+e.Version] = true, true
	}
	for _, sum := range append(slices.Clone(l.Before), l.Serving) {
		if sum != "" && !seen[sum] {
			return nil, fmt.Errorf("it points at %.20q, which it does not have", sum)
		}
	}
	for i := range l.History {
		e := &l.History[i]
		e.What, e.Version, e.Sum, e.Who = Change(line.Of(string(e.What))), line.Of(e.Version), line.Of(e.Sum), line.Of(e.Who)
	}
	return &l, nil
}

// Encode returns the ledger as it is stored. If that is too long, it removes the oldest
// events from l.History until it fits.
func (l *Ledger) Encode() (string, error) {
	l.Format = format
	for {
		body, err := json.Marshal(l)
		if err != nil || len(body) <= maxLedgerBytes {
			return string(body), err
		}
		if len(l.History) == 0 {
			return "", errors.New("the ledger is too large")
		}
		l.History = l.History[1:]
	}
}

// Clone returns a copy that shares nothing with l.
func (l *Ledger) Clone() *Ledger {
	c := *l
	c.Before, c.Versions, c.History = slices.Clone(l.Before), slices.Clone(l.Versions), slices.Clone(l.History)
	return &c
}

// Find returns the version with a sum, and false if none is kept.
func (l *Ledger) Find(sum string) (Edition, bool) {
	i := slices.IndexFunc(l.Versions, func(e Edition) bool { return e.Sum == sum })
	if i < 0 {
		return Edition{}, false
	}
	return l.Versions[i], true
}

// SumOf returns the sum that a version has, or had as far as the history
// tells; "" if there was no such version.
func (l *Ledger) SumOf(version string) string {
	for _, e := range l.Versions {
		if e.Version == version {
			return e.Sum
		}
	}
	for _, e := range l.History {
		if e.Version == version {
			return e.Sum
		}
	}
	return ""
}

// NextNumber returns the number above the highest version that is a number, dropped ones
// included as far as the history tells.
func (l *Ledger) NextNumber() string {
	highest := 0
	see := func(version string) {
		if n, err := strconv.Atoi(version); err == nil {
			highest = max(highest, n)
		}
	}
	for _, e := range l.Versions {
		see(e.Version)
	}
	for _, e := range l.History {
		see(e.Version)
	}
	return strconv.Itoa(highest + 1)
}

// Whole reports whether a history begins with an artefact's first publication, for an
// artefact whose versions are numbers. If it does not, its oldest changes are forgotten.
func Whole(history []Event) bool {
	return len(history) > 0 && history[0].What == Published && history[0].Version == "1"
}

// Same reports whether two events are the same one.
func (e Event) Same(o Event) bool {
	return e.What == o.What && e.Version == o.Version && e.Sum == o.Sum && e.Who == o.Who && e.When.Equal(o.When)
}

// Note adds an event to the history.
func (l *Ledger) Note(what Change, e Edition, who string) {
	l.History = append(l.History, Event{What: what, Version: e.Version, Sum: e.Sum, Who: audit.Shortened(who), When: time.Now().UTC().Truncate(time.Millisecond)})
	l.History = l.History[max(0, len(l.History)-maxEvents):]
}

// Care says how much a version is still needed, when others are dropped to make room.
type Care int

// How much versions are needed. [Ledger.Publish] removes them in this order.
const (
	Unneeded Care = iota
	Wanted        // removed only when all others are wanted, too
	Spared        // never removed
)

// Publish adds version e. While there are too many versions or bytes, it drops the version
// that is needed least; of several such, the oldest. It never drops e itself, the version
// that serves, the one that served before that, or a version that is Spared. So the ledger
// may stay too large.
func (l *Ledger) Publish(e Edition, needed func(Edition) Care, who string) {
	l.Versions = append(l.Versions, e)
	l.Note(Published, e, who)
	for l.full() {
		oldest, least := -1, Spared
		for i, v := range l.Versions {
			if v == e || v.Sum == l.Serving || len(l.Before) > 0 && v.Sum == l.Before[len(l.Before)-1] {
				continue
			}
			if n := needed(v); n < least {
				oldest, least = i, n
			}
		}
		if oldest < 0 {
			return
		}
		l.Drop(l.Versions[oldest], "to make room")
	}
}

// full reports whether there are too many versions, or too many bytes of them.
func (l *Ledger) full() bool {
	total := 0
	for _, v := range l.Versions {
		total += v.Bytes
	}
	return len(l.Versions) > MaxVersions || total > maxKeptBytes
}

// Serve makes a version the one that serves.
func (l *Ledger) Serve(e Edition, who string) {
	if l.Serving != "" {
		l.Before = append(l.Before, l.Serving)
		l.Before = l.Before[max(0, len(l.Before)-maxServed):]
	}
	l.Serving = e.Sum
	l.Note(Served, e, who)
}

// move returns the index in the history of the last event that changed which version serves;
// -1 if there was none or it is forgotten.
func (l *Ledger) move() int {
	for i, e := range slices.Backward(l.History) {
		if e.What == Served || e.What == RolledBack || e.What == Dropped && l.Serving == "" {
			return i
		}
	}
	return -1
}

// Precedes reports whether o continues l: whether o's history has the event that last changed
// which version serves in l, and a later such event.
func (l *Ledger) Precedes(o *Ledger) bool {
	at := l.move()
	if at < 0 {
		return false
	}
	i := slices.IndexFunc(o.History, l.History[at].Same)
	return i >= 0 && i < o.move()
}

// Lacks returns the versions that o has and l does not: for each the name of the artefact,
// which is the parameter of, a space and the version's name.
func (l *Ledger) Lacks(of string, o *Ledger) (all []string) {
	for _, e := range o.Versions {
		if _, has := l.Find(e.Sum); !has {
			all = append(all, of+" "+e.Version)
		}
	}
	return all
}

// Serves names the version that serves: "version V" or "no version".
func (l *Ledger) Serves() string {
	e, _ := l.Find(l.Serving)
	return Named(e.Version)
}

// Named returns "version V", or "no version" if version is empty.
func Named(version string) string {
	if version == "" {
		return "no version"
	}
	return "version " + version
}

// Rollback makes the version that served before serve again. l.Before must not be empty.
func (l *Ledger) Rollback(who string) {
	last := len(l.Before) - 1
	e, _ := l.Find(l.Before[last])
	l.Serving, l.Before = e.Sum, l.Before[:last]
	l.Note(RolledBack, e, who)
}

// Drop removes a version. If it serves, nothing serves afterwards.
func (l *Ledger) Drop(e Edition, who string) {
	l.Versions = slices.DeleteFunc(l.Versions, func(v Edition) bool { return v.Sum == e.Sum })
	l.Before = slices.DeleteFunc(l.Before, func(sum string) bool { return sum == e.Sum })
	if l.Serving == e.Sum {
		l.Serving = ""
	}
	// What remains may name the same version twice in a row.
	l.Before = slices.Compact(l.Before)
	if n := len(l.Before); n > 0 && l.Before[n-1] == l.Serving {
		l.Before = l.Before[:n-1]
	}
	l.Note(Dropped, e, who)
}

// Gone returns when the artefact's serving version was last dropped, or the whole artefact,
// as far as the history tells; zero: never.
func (l *Ledger) Gone() (at time.Time) {
	serving := ""
	for _, e := range l.History {
		switch {
		case e.What == Served || e.What == RolledBack:
			serving = e.Sum
		case e.What == Dropped && (e.Sum == serving || e.Sum == ""): // no sum: the whole artefact, which could not be read
			at = e.When
		}
	}
	return at
}

// newVersion matches what CheckNewVersion allows.
var newVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$`)

// CheckNewVersion checks the name of a version that is about to be published. It is strict,
// so that no two names look alike and none looks like a flag. Names from older releases
// need only pass [CheckVersion].
func CheckNewVersion(version string) error {
	if !newVersion.MatchString(version) {
		return fmt.Errorf("%+.120q is not the name of a version: 1 to %d letters, digits, '.', '_', '+' and '-' of ASCII, a letter or digit first", version, maxVersionLen)
	}
	return nil
}

// CheckVersion refuses what cannot be the name of a version.
func CheckVersion(version string) error {
	if version == "" || len(version) > maxVersionLen || !utf8.ValidString(version) || strings.ContainsFunc(version, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		return fmt.Errorf("%.120q is not the name of a version: 1 to %d bytes without spaces", version, maxVersionLen)
	}
	return nil
}

// IsSum reports whether s is a SHA-256 in hex.
func IsSum(s string) bool {
	return len(s) == 64 && !bytes.ContainsFunc([]byte(s), func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
}

// ParseBoth reads two bodies as ledgers; nil for a body that is none.
func ParseBoth(kept, has string) (k, h *Ledger) {
	k, _ = Parse(kept)
	h, _ = Parse(has)
	return k, h
}
