package topology

import (
	"encoding/json"
	"fmt"
)

// Lag is how far a node that had caught up has fallen behind the log again. The zero Lag says
// that it keeps up.
type Lag struct {
	Behind  Set     // the partitions whose records wait too long
	Seconds float64 // how long the oldest record that is not applied has waited, at least; 0 if Behind is not empty: not known
	Records int64   // how many records are not applied
}

// Far returns in words how many seconds the node is behind.
func (l *Lag) Far() string {
	if l.Behind.Len() > 0 && l.Seconds == 0 {
		return "not known"
	}
	return fmt.Sprintf("%.0f s", l.Seconds)
}

// lagDoc is a Lag as etcd holds it.
type lagDoc struct {
	Behind  []byte  `json:"behind"`
	Seconds float64 `json:"seconds"`
	Records int64   `json:"records"`
}

// Encode returns a lag as etcd holds it.
func (l *Lag) Encode() []byte {
	b, err := json.Marshal(lagDoc{l.Behind.Encode(), l.Seconds, l.Records})
	if err != nil {
		panic(fmt.Sprintf("cluster: lag %+v: %v", l, err)) // NaN or Inf: a bug of the node
	}
	return b
}

// maxLagBytes bounds a lag before it is parsed.
const maxLagBytes = 4 << 10

func decodeLag(b []byte) (l Lag, err error) {
	var doc lagDoc
	if len(b) > maxLagBytes {
		return l, fmt.Errorf("%d bytes are no lag", len(b))
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return l, err
	}
	l.Behind, err = decodeSet(doc.Behind)
	l.Seconds, l.Records = doc.Seconds, doc.Records
	return l, err
}
