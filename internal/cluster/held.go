package cluster

import (
	"fmt"
	"sync"
)

// maxHeldBytes bounds what all watchers of a client but those of the map hold of
// etcd, so that what somebody puts there ends no process, under however many
// prefixes. The map has an answer's bound beside it. Only tests change it.
var maxHeldBytes = 48 << 20

// held is what the watchers of a client hold of etcd.
type held struct {
	sync.Mutex
	bytes int
}

// holding is what one watcher holds. Watchers read in turns (see [Client.read]),
// so that what fits is still so when it is set.
type holding struct {
	of    *held
	what  string
	bytes int
}

// fits says why a watcher cannot hold so many bytes; nil if it can.
func (h *holding) fits(bytes int) error {
	h.of.Lock()
	defer h.of.Unlock()
	if others := h.of.bytes - h.bytes; bytes > h.bytes && others+bytes > maxHeldBytes {
		return fmt.Errorf("cluster: %d bytes under %s, and %d that this process holds of etcd otherwise, are more than %d: remove what nobody needs", bytes, h.what, others, maxHeldBytes)
	}
	return nil
}

// set notes what a watcher holds.
func (h *holding) set(bytes int) {
	h.of.Lock()
	defer h.of.Unlock()
	h.of.bytes += bytes - h.bytes
	h.bytes = bytes
}
