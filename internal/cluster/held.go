package cluster

import (
	"fmt"
	"sync"
)

// maxHeldBytes bounds the memory for the state of etcd that all watchers of a client hold,
// without those of the map. So nothing that somebody puts into etcd, under however many
// prefixes, makes a process run out of memory. The map is bounded by maxAnswerBytes on its
// own. Only tests change maxHeldBytes.
var maxHeldBytes = 48 << 20

// held counts the bytes that the watchers of a client hold of etcd.
type held struct {
	sync.Mutex
	bytes int
}

// holding counts the bytes that one watcher holds. Watchers read one at a time (see
// [Client.read]), so that bytes for which fits found room still have it when set is called.
type holding struct {
	of    *held
	what  string // the prefix, for the error
	bytes int
}

// fits returns nil if the watcher may hold so many bytes, else why not. Fewer bytes than it
// holds always fit.
func (h *holding) fits(bytes int) error {
	h.of.Lock()
	defer h.of.Unlock()
	if others := h.of.bytes - h.bytes; bytes > h.bytes && others+bytes > maxHeldBytes {
		return fmt.Errorf("cluster: %d bytes under %s, and %d that this process holds of etcd otherwise, are more than %d: remove what nobody needs", bytes, h.what, others, maxHeldBytes)
	}
	return nil
}

// set notes that the watcher now holds so many bytes.
func (h *holding) set(bytes int) {
	h.of.Lock()
	defer h.of.Unlock()
	h.of.bytes += bytes - h.bytes
	h.bytes = bytes
}
