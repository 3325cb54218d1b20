//go:build synctests

package simulation

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	_ "unsafe" // for linkname

	_ "go.etcd.io/etcd/client/v3"
)

// valCtxCh is a channel that never closes, by which etcd's client detaches its
// watches from contexts. It is made when the program starts, outside of any
// bubble, so that who waits for it would hold virtual time up. Nil does as well.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

func TestMain(m *testing.M) {
	valCtxCh = nil
	runtime.GOMAXPROCS(1)   // one goroutine at a time: a history repeats best
	debug.SetGCPercent(400) // a world is small, and its garbage much
	os.Exit(m.Run())
}
