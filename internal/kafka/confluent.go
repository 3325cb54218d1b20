package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/millrace/millrace/schemas"
)

// ConfluentRegistry returns a look-up of schema ids in a Confluent-compatible
// schema registry, for values in Confluent framing.
func ConfluentRegistry(url string) (schemas.Lookup, error) {
	cl, err := sr.NewClient(sr.URLs(url), sr.HTTPClient(&http.Client{Timeout: 5 * time.Second}))
	if err != nil {
		return nil, fmt.Errorf("kafka: schema registry %s: %w", url, err)
	}
	return func(ctx context.Context, id uint32) (*schemas.Schema, error) {
		if id > math.MaxInt32 {
			return nil, unknownID(id, "a registry's ids are positive 32-bit integers")
		}
		s, err := cl.SchemaByID(ctx, int(id))
		var answer *sr.ResponseError
		switch {
		case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
			return nil, unknownID(id, answer.Message)
		case err != nil:
			return nil, fmt.Errorf("kafka: schema registry: id %d: %w", id, err)
		case s.Type != sr.TypeAvro || len(s.References) > 0:
			return nil, unknownID(id, "it is not a self-contained Avro schema")
		}
		return schemas.Parse([]byte(s.Schema))
	}, nil
}

func unknownID(id uint32, why string) error {
	return &schemas.Error{Reason: schemas.UnknownSchema, Detail: fmt.Sprintf("schema registry: id %d: %s", id, why)}
}
