// Package datadir is the directory in which a process of a cluster keeps its files. A file
// says which process it belongs to. The others hold the last good state of what the
// process watches. They are replaced whole, and written again later if that failed; until
// etcd has told the present state the process goes by them, and tells how old they are. The
// package itself does not call etcd.
package datadir

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/millrace/millrace"
)

// identity is the content of IdentityFile: which process a data directory belongs to.
type identity struct {
	Cluster  string          `json:"cluster"`
	Node     millrace.NodeID `json:"node,omitempty"`  // empty: a broker
	Instance string          `json:"instance"`        // see Instance.Word
	Start    int64           `json:"start,omitempty"` // how many processes have registered from here
}

// Instance tells one data directory from another, and from a copy of itself.
type Instance struct {
	Word  string // random, made when the identity was written
	Place string // boot id, device and inode of the directory, which a copy does not share; empty: not known
	Start int64  // how many processes have registered from here
	dir   string
}

// placeOf returns a name of a directory. Two directories that exist at the same time have
// two names, and a directory keeps its name until the machine starts anew. It is empty if
// the system does not tell.
func placeOf(dir string) string {
	boot, err := Read("/proc/sys/kernel/random/boot_id", maxIdentityBytes)
	if err != nil {
		return ""
	}
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	at, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.8s/%d/%d", boot, at.Dev, at.Ino)
}

// Registered writes into the directory that the start-th process registers from it.
func (i Instance) Registered(start int64) error {
	if i.dir == "" {
		return nil
	}
	file := filepath.Join(i.dir, IdentityFile)
	id, err := readIdentity(file)
	if err == nil {
		id.Start = start
		err = id.write(i.dir, file)
	}
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

const (
	// IdentityFile says whose a data directory is.
	IdentityFile     = "identity.json"
	maxIdentityBytes = 4 << 10
)

// CheckDir makes a data directory that of a node of a cluster, or of a broker
// if the id is empty, and returns its instance, for Dir of topology.Node; name is the
// cluster's. It creates a directory that does not exist. A directory that belongs to
// another node or cluster is refused: its offsets and last good state would be wrong.
func CheckDir(dir, name string, id millrace.NodeID) (instance Instance, err error) {
	file := filepath.Join(dir, IdentityFile)
	have, err := readIdentity(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, errIdentity): // it does not say whose directory this is: write it anew, and leave the other files
		err = os.Rename(file, file+".damaged")
		if err != nil {
			return Instance{}, fmt.Errorf("cluster: %w", err)
		}
	case err != nil:
		return Instance{}, fmt.Errorf("cluster: %w", err)
	case have.Cluster != name || have.Node != id:
		return Instance{}, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "data",
			Detail: fmt.Sprintf("%s belongs to %s, not to %s", dir, have, identity{Cluster: name, Node: id}),
			WayOut: "name a directory of its own, or the right cluster and id; to give its data away for good, remove the directory",
		}
	default:
		return Instance{have.Instance, placeOf(dir), have.Start, dir}, nil
	}
	made := identity{name, id, rand.Text(), 0}
	if err := made.write(dir, file); err != nil {
		return Instance{}, fmt.Errorf("cluster: %w", err)
	}
	return Instance{made.Instance, placeOf(dir), 0, dir}, nil
}

func (i identity) String() string {
	if i.Node == "" {
		return fmt.Sprintf("a broker of cluster %q", i.Cluster)
	}
	return fmt.Sprintf("node %q of cluster %q", i.Node, i.Cluster)
}

var errIdentity = errors.New("the identity is damaged")

func readIdentity(file string) (i identity, err error) {
	body, err := Read(file, maxIdentityBytes)
	if err != nil {
		return i, err
	}
	if json.Unmarshal(body, &i) != nil || i.Cluster == "" || i.Instance == "" {
		return i, errIdentity
	}
	return i, nil
}

// write writes an identity so that a crash leaves the old file or the new one, whole.
func (i identity) write(dir, file string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	body, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return Replace(file, append(body, '\n'), 0o644)
}
