package cluster

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace"
)

// identity is whose a data directory is.
type identity struct {
	Cluster  string          `json:"cluster"`
	Node     millrace.NodeID `json:"node,omitempty"` // none: a broker
	Instance string          `json:"instance"`       // see [Node.Instance]
}

const (
	identityFile     = "identity.json"
	maxIdentityBytes = 4 << 10
)

// CheckDir makes a data directory that of a node of a cluster, or of a broker
// if the id is empty, and returns its instance, for [Node.Instance]. One that
// is another's is refused: its offsets and last good state are of another
// cluster or of other partitions.
func CheckDir(dir, name string, id millrace.NodeID) (instance string, err error) {
	file := filepath.Join(dir, identityFile)
	have, err := readIdentity(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, errIdentity): // it says nothing: what else is in the directory tells for itself
		err = os.Rename(file, file+".damaged")
		if err != nil {
			return "", fmt.Errorf("cluster: %w", err)
		}
	case err != nil:
		return "", fmt.Errorf("cluster: %w", err)
	case have.Cluster != name || have.Node != id:
		return "", &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "data",
			Detail: fmt.Sprintf("%s belongs to %s, not to %s", dir, have, identity{Cluster: name, Node: id}),
			WayOut: "name a directory of its own, or the right cluster and id; to give this one away for good, remove it",
		}
	default:
		return have.Instance, nil
	}
	made := identity{name, id, rand.Text()}
	if err := made.write(dir, file); err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	return made.Instance, nil
}

func (i identity) String() string {
	if i.Node == "" {
		return fmt.Sprintf("a broker of cluster %q", i.Cluster)
	}
	return fmt.Sprintf("node %q of cluster %q", i.Node, i.Cluster)
}

var errIdentity = errors.New("the identity is damaged")

func readIdentity(file string) (i identity, err error) {
	body, err := readFile(file, maxIdentityBytes)
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
	return replaceFile(file, append(body, '\n'), 0o644)
}

// replaceFile writes a file beside its place, syncs it and moves it there, so
// that a crash leaves the old one or the new one.
func replaceFile(file string, body []byte, mode os.FileMode) error {
	f, err := os.OpenFile(file+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
