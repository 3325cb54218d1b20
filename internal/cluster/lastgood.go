package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/wait"
)

// saveEvery is the least time between two saves of the map. While partitions move, the map
// changes many times a second, in every process.
const saveEvery = time.Second

// keeper keeps the newest map on disk.
type keeper struct {
	c    *Client
	mu   sync.Mutex
	busy bool   // a map is being saved, or was saved less than saveEvery ago
	next func() // saves the newest map; nil: it is saved
}

// save saves a map to disk: at once if none was saved within saveEvery, else later, unless a
// newer one comes before. Only goroutines of [Client.Run] may call it, since it starts
// another one.
func (k *keeper) save(ctx context.Context, m *topology.Map, from keyspace.Origin) {
	if m.Epoch() == 0 {
		return
	}
	k.mu.Lock()
	k.next = func() { k.c.saveMap(m, from) }
	idle := !k.busy
	k.busy = true
	k.mu.Unlock()
	if idle && k.saveNext() {
		k.c.Run(func() {
			for more := true; more; more = k.saveNext() {
				_ = wait.For(ctx, saveEvery)
			}
		})
	}
}

// saveNext saves the newest map, if it is not saved yet, and reports whether it did.
func (k *keeper) saveNext() bool {
	k.mu.Lock()
	save := k.next
	k.next, k.busy = nil, save != nil
	k.mu.Unlock()
	if save != nil {
		save()
	}
	return save != nil
}

// saveMap writes a map to the data directory, if there is one, for the next start.
func (c *Client) saveMap(m *topology.Map, from keyspace.Origin) {
	c.SaveFile(datadir.MapFile(c.dir), m.Kept(from))
}
