// Package datadir is what a process of a cluster keeps on disk: whose directory it
// is, and files of what was last good, which are replaced whole, written again where
// that failed, and known by their age until etcd has told what is so now. It knows
// nothing of etcd.
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

// identity is whose a data directory is.
type identity struct {
	Cluster  string          `json:"cluster"`
	Node     millrace.NodeID `json:"node,omitempty"`  // none: a broker
	Instance string          `json:"instance"`        // see Instance of topology.Node
	Start    int64           `json:"start,omitempty"` // how many processes have registered from here
}

// Instance is what a data directory says of the process that has it.
type Instance struct {
	Word  string // random, written when the identity was made
	Place string // boot, device and inode of the directory, by which a copy of it is told; empty: not known
	Start int64  // how many processes have registered from here
	dir   string
}

// placeOf names a directory so that two that are there at a time have two
// names, and the same one keeps its own until the machine starts anew.
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

// Registered writes down that one more process, the start-th, registers from the directory.
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
// if the id is empty, and returns its instance, for Dir of topology.Node. One that
// is another's is refused: its offsets and last good state are of another
// cluster or of other partitions.
func CheckDir(dir, name string, id millrace.NodeID) (instance Instance, err error) {
	file := filepath.Join(dir, IdentityFile)
	have, err := readIdentity(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, errIdentity): // it says nothing: what else is in the directory tells for itself
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

// write keeps an identity so that a crash leaves it whole or leaves none.
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
