package cluster_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
)

// Who no longer watches has no fault to tell: a coordinator that lost the lead in
// an outage must not raise an alarm until it leads again. Who watches the same
// goes on telling.
func TestAnAlarmEndsWithItsWatch(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	c := etcd.open("")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	_, err := documents.Watch(ctx, c, "feeds")
	check(t, err)
	_, err = artefacts.Watch(ctx, c, "models")
	check(t, err)
	_, err = artefacts.WatchCondemned(ctx, c)
	check(t, err)
	_, err = c.Watch(ctx)
	check(t, err)
	_, err = artefacts.Watch(t.Context(), c, "models")
	check(t, err)
	etcd.stop()
	rising := func(of ...string) func() bool {
		return func() bool {
			now := alarm(t, c)
			maps.DeleteFunc(now, func(_ string, seconds float64) bool { return seconds == 0 })
			for _, kind := range of {
				if now[kind] == 0 {
					return false
				}
			}
			return len(now) == len(of)
		}
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for began := time.Now(); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Since(began) > 60*time.Second {
				t.Fatalf("waited in vain until %s: %v", what, alarm(t, c))
			}
		}
	}
	until("all rise", rising("feeds", "models", "condemned", "map"))
	end()
	until("what is watched on rises alone", rising("models"))
}
