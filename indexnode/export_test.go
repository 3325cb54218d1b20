package indexnode

import "github.com/millrace/millrace/indexnode/store"

// Store is the node's, for tests to damage.
func (n *Node) Store() *store.Store { return n.store }
