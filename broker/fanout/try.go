package fanout

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// tryTime bounds how long a node may take to say whether it accepts a question.
const tryTime = 2 * time.Second

// TryOn asks a node whether it accepts the filter, the model and the types of q, which names
// no entities. It sets ToMs and Limit of q to what any node accepts: nothing is read.
func TryOn(ctx context.Context, node Node, q *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	q.ToMs, q.Limit = int64(millrace.MaxTime)+1, 1
	return node.Query(ctx, q)
}

// RefusalOf returns a node's refusal of a filter, a model, weights, types or fields; nil for
// any other error.
func RefusalOf(err error) *millrace.Error {
	var refused *millrace.Error
	if errors.As(err, &refused) && (refused.Reason == millrace.ReasonFilter || refused.Reason == millrace.ReasonUnknown) {
		return refused
	}
	return nil
}

// maxTried is how many nodes Try asks at most.
const maxTried = 3

// Try asks up to maxTried index nodes about q, as TryOn does. It returns nil as soon as one
// node accepts q, else the last refusal of the filter or the model. heard says whether
// any node accepted or refused; if none did, err is nil.
func (f *Fanout) Try(ctx context.Context, q *nodev1.QueryRequest) (heard bool, err error) {
	m, tried := f.maps.Current(), 0
	for _, n := range m.Nodes() {
		if !m.Alive(n.ID) || tried == maxTried || ctx.Err() != nil {
			continue
		}
		tried++
		node, away := f.conns.get(n)
		if away == nil {
			_, away = TryOn(ctx, node, q)
		}
		if away == nil {
			return true, nil // one acceptance is enough: a node that refuses may just not have the schema yet
		}
		if refused := RefusalOf(away); refused != nil {
			heard, err = true, refused
		}
	}
	return heard, err
}
