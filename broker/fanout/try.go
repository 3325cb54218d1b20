package fanout

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// tryTime bounds what a node may take to answer what it makes of a definition.
const tryTime = 2 * time.Second

// TryOn asks a node for nothing, by a filter, a model and types.
func TryOn(ctx context.Context, node Node, q *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	q.ToMs, q.Limit = int64(millrace.MaxTime)+1, 1
	return node.Query(ctx, q)
}

// RefusalOf returns a node's refusal of a filter or a model; nil for any other
// error.
func RefusalOf(err error) *millrace.Error {
	var refused *millrace.Error
	if errors.As(err, &refused) && (refused.Reason == millrace.ReasonFilter || refused.Reason == millrace.ReasonUnknown) {
		return refused
	}
	return nil
}

// maxTried is how many nodes a broker asks what they make of a definition.
const maxTried = 3

// Try reports what some index nodes have against a question for nothing: one
// that takes it decides. If none can be asked nothing is known against it.
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
			return true, nil // another that refuses it does not know a schema yet
		}
		if refused := RefusalOf(away); refused != nil {
			heard, err = true, refused
		}
	}
	return heard, err
}
