package members

import (
	"testing"

	"github.com/millrace/millrace/internal/cluster/topology"
)

// Whoever is told that partitions answer is told with it that they are behind, at
// whatever moment that is.
func TestWhatIsReadyIsToldWithItsLag(t *testing.T) {
	m := &Membership{news: make(chan struct{}, 1)}
	m.mu.said = map[string]string{}
	lag := encodeLag(topology.Lag{Seconds: 1, Behind: topology.All()})
	var nothing topology.Set
	none := string(nothing.Encode())
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if said := m.said(); said["ready"] != "" && said["ready"] != none && said["lag"] != lag {
				t.Error("stale partitions are told as ready, and not as behind")
				return
			}
		}
	}()
	for range 20_000 {
		m.SetAnswering(topology.All(), topology.Lag{Seconds: 1, Behind: topology.All()})
		m.SetAnswering(nothing, topology.Lag{})
	}
	close(stop)
	<-done
}
