package progress

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What is of no group or of no time is no heartbeat: everybody would wait for the next.
func TestWhatIsNoHeartbeat(t *testing.T) {
	l := &Log{}
	l.known.groups = map[string]Progress{}
	for _, r := range []kgo.Record{
		{Key: nil, Value: []byte(`{}`)},
		{Key: nil, Value: []byte(`{"at_ms": 1767225600000}`)},
		{Key: []byte("group"), Value: []byte(`{}`)},
		{Key: []byte("group"), Value: []byte(`[]`)},
	} {
		if err := l.take(&r); err != nil || len(l.Groups()) > 0 {
			t.Errorf("%s under %q: %v, %v", r.Value, r.Key, l.Groups(), err)
		}
	}
	if err := l.take(&kgo.Record{Key: []byte("group"), Value: []byte(`{"at_ms": 1767225600000}`)}); err != nil || len(l.Groups()) != 1 {
		t.Errorf("%v, %v", l.Groups(), err)
	}
}
