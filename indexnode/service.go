package indexnode

import (
	"context"
	"fmt"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rpcerr"
)

// Query implements nodev1.NodeServiceServer.
func (n *Node) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	return n.answers.Query(ctx, req)
}

// Hot implements nodev1.NodeServiceServer.
func (n *Node) Hot(ctx context.Context, req *nodev1.HotRequest) (*nodev1.HotResponse, error) {
	return n.warm.Hot(ctx, req)
}

// GetSchema implements nodev1.NodeServiceServer.
func (n *Node) GetSchema(_ context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	known := n.schemas.Snapshot()
	s := known.ByFingerprint(millrace.Fingerprint(req.Fingerprint))
	if s == nil {
		return nil, rpcerr.Status(&millrace.Error{Reason: millrace.ReasonUnknown, Field: "fingerprint", Detail: fmt.Sprintf("no schema %s", millrace.Fingerprint(req.Fingerprint))})
	}
	resp := &nodev1.GetSchemaResponse{Json: s.JSON()}
	if req.Fields {
		names, sum := known.Fields()
		if resp.FieldsSum = sum; sum != req.FieldsSum {
			resp.Fields = names
		}
	}
	return resp, nil
}
