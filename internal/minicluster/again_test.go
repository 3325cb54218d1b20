package minicluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

// A directory that is not new has as many nodes as its cluster's assignment names, unless
// more are asked for, which host nothing yet and are waited for by nobody.
func TestADirectorySaysHowManyNodes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	for _, x := range []struct {
		asked int
		ids   []millrace.NodeID
	}{{1, []millrace.NodeID{"node-1"}}, {0, []millrace.NodeID{"node-1"}}, {2, []millrace.NodeID{"node-1", "node-2"}}, {0, []millrace.NodeID{"node-1"}}} {
		c, err := Start(ctx, Config{Dir: dir, Nodes: x.asked, Replicas: 1})
		if err != nil {
			t.Fatal(err)
		}
		wait, cancel := context.WithTimeout(ctx, 30*time.Second)
		err = c.WaitReady(wait)
		cancel()
		if err := errors.Join(err, c.Close()); err != nil || !slices.Equal(c.ids, x.ids) {
			t.Fatalf("%d are asked for: %v run, %v", x.asked, c.ids, err)
		}
	}
	dir = t.TempDir()
	for _, asked := range []int{2, 1} {
		c, err := Start(ctx, Config{Dir: dir, Nodes: asked, Replicas: 1})
		if asked == 1 {
			if err == nil || !strings.Contains(err.Error(), "node-2") {
				t.Errorf("fewer nodes are asked for than the directory has: %v", err)
			}
			continue
		}
		if err := errors.Join(err, c.WaitReady(ctx), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
