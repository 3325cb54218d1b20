package backup

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// kind is what an object is, by its name alone.
type kind uint8

const (
	isUnknown   kind = iota
	isWhose          // says which cluster owns the bucket
	isFile           // bytes that manifests or parts of cuts name by their hash
	isManifest       // a backup of a partition
	isCut            // one moment of the whole cluster
	isCutPart        // a partition's part of a cut
	isDrill          // the result of a restore drill
	isHealing        // a record of damage to a node's copy that was replaced
	isAct            // a record of what somebody did
	isHold           // what a backup is about to name; see hold.go
	isCondemned      // what an expiry is about to remove; see hold.go
	isScratch        // a file that is being written
)

// place is what the name of an object says.
type place struct {
	kind      kind
	partition millrace.Partition // the partition of a manifest or of a part of a cut
	id        string             // the id of a manifest or a record; the name of a cut, of a part's cut, of a hold or a condemnation
	hash      Hash               // the hash of a file
}

const (
	manifestsPrefix = "partitions/"
	cutsPrefix      = "cuts/"
	drillsPrefix    = "drills/"
	healingsPrefix  = "healed/"
	actsPrefix      = "acts/"
	holdsPrefix     = "pending/"
	condemnedPrefix = "expiry/"
	objectSuffix    = ".json"
)

func manifestName(p millrace.Partition, id string) string {
	return fmt.Sprintf("%s%03d/%s%s", manifestsPrefix, p, id, objectSuffix)
}

func cutName(name string) string { return cutsPrefix + name + objectSuffix }

func cutPartName(name string, p millrace.Partition) string {
	return fmt.Sprintf("%s%s/%03d%s", cutsPrefix, name, p, objectSuffix)
}

// ObjectOf returns the name of the object of a partition's backup, or of its part of a cut
// if cut is not empty. It is for the Object of a [Damage].
func ObjectOf(p millrace.Partition, id, cut string) string {
	if cut != "" {
		return cutPartName(cut, p)
	}
	return manifestName(p, id)
}

// goodID is an id of a backup or of a record: idTime, a dash, and the node's name, or that
// of a person. goodCut is a name of a cut, a hold or a condemnation. notInID is what newID
// replaces in a node's name.
var (
	goodID  = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}\.[0-9]{3}Z-[A-Za-z0-9._-]{1,64}$`)
	goodCut = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	notInID = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
)

// parse returns what an object is by its name. Its kind is isUnknown for a name that this
// package never writes.
func parse(name string) (at place) {
	if name == whoseName {
		return place{kind: isWhose}
	}
	if strings.HasPrefix(name, objects.Scratch+"/") {
		return place{kind: isScratch}
	}
	if h, ok := fileOf(name); ok {
		return place{kind: isFile, hash: h}
	}
	stem, ok := strings.CutSuffix(name, objectSuffix)
	if !ok {
		return place{}
	}
	top, rest, _ := strings.Cut(stem, "/")
	switch top + "/" {
	case manifestsPrefix:
		number, id, _ := strings.Cut(rest, "/")
		if p, ok := parsePartition(number); ok && goodID.MatchString(id) {
			return place{kind: isManifest, partition: p, id: id}
		}
	case cutsPrefix:
		cut, number, part := strings.Cut(rest, "/")
		p, ok := parsePartition(number)
		switch {
		case !goodCut.MatchString(cut):
		case !part:
			return place{kind: isCut, id: cut}
		case ok:
			return place{kind: isCutPart, id: cut, partition: p}
		}
	case drillsPrefix:
		if goodID.MatchString(rest) {
			return place{kind: isDrill, id: rest}
		}
	case healingsPrefix:
		if goodID.MatchString(rest) {
			return place{kind: isHealing, id: rest}
		}
	case actsPrefix:
		if goodID.MatchString(rest) {
			return place{kind: isAct, id: rest}
		}
	case holdsPrefix:
		if goodCut.MatchString(rest) {
			return place{kind: isHold, id: rest}
		}
	case condemnedPrefix:
		if goodCut.MatchString(rest) {
			return place{kind: isCondemned, id: rest}
		}
	}
	return place{}
}

// parsePartition reads a partition as names have it: three digits.
func parsePartition(s string) (millrace.Partition, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return millrace.Partition(n), err == nil && n < partitions && fmt.Sprintf("%03d", n) == s
}

// idTime is the time at the beginning of an id, as [time.Time.Format] takes it.
const idTime = "20060102T150405.000Z"

// newID returns an id with the time now and the name of a node. It sorts after the id after:
// if now is no later than the time of after, the new id has the next millisecond instead.
// after is "" if there is no id before.
func newID(now time.Time, node millrace.NodeID, after string) string {
	now = now.UTC()
	if last, err := IDTime(after); err == nil && !now.Truncate(time.Millisecond).After(last) {
		now = last.Add(time.Millisecond)
	}
	name := notInID.ReplaceAllString(string(node), "-")
	if name == "" {
		name = "-"
	}
	return now.Format(idTime) + "-" + name[:min(len(name), 64)]
}

// maxAhead is how far the clocks of machines may differ. A backup that is dated further
// ahead of now is not taken for the newest.
const maxAhead = 5 * time.Minute

// ahead reports whether an id is dated more than maxAhead after now.
func ahead(id string) bool {
	at, err := IDTime(id)
	return err == nil && time.Until(at) > maxAhead
}

// tooNew returns the damage of a backup whose id is ahead.
func tooNew(p millrace.Partition, id string) *Damage {
	return &Damage{Object: manifestName(p, id), Kind: Future, Detail: fmt.Sprintf("it is dated ahead of now, %s; remove it, or correct this clock", time.Now().UTC().Format(time.RFC3339))}
}

// IDTime returns when a backup was made, by its id. The error says that id is no id of one.
func IDTime(id string) (time.Time, error) {
	if !goodID.MatchString(id) {
		return time.Time{}, fmt.Errorf("backup: %.80q is no id of a backup", id)
	}
	return time.Parse(idTime, id[:len(idTime)])
}
