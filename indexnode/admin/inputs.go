package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// inputs are the topics of Kafka that partitioners read, by name.
type inputs map[string]inputTopic

type inputTopic struct {
	kind   progress.TopicKind // whether it has content or features
	future time.Duration      // how far in the future the times of its records may be
}

// inputs returns the topics that partitioners have said in the topic progress that they read.
func (s *Server) inputs(ctx context.Context) (inputs, error) {
	progress, err := progress.Open(progress.Config{Brokers: s.cfg.Brokers, Topic: s.cfg.Topics.Progress, Log: s.cfg.Log})
	if err != nil {
		return nil, err
	}
	defer progress.Close()
	if err := progress.Refresh(ctx); err != nil {
		return nil, err
	}
	all := inputs{}
	for _, g := range progress.Groups() {
		for topic, kind := range g.Kinds {
			all[topic] = inputTopic{kind, cmp.Or(g.Future(), schemas.DefaultFuture)}
		}
	}
	return all, nil
}

// of returns the topic of a kind to write to: the topic that named names, or if named is ""
// the only topic of the kind. future is how far in the future the times of its records may
// be. The error says that there is no such topic, or that there are several.
func (all inputs) of(kind progress.TopicKind, named string) (topic string, future time.Duration, err error) {
	var fit []string
	for _, t := range slices.Sorted(maps.Keys(all)) {
		if all[t].kind == kind {
			fit = append(fit, t)
		}
	}
	switch {
	case len(fit) == 0:
		return "", 0, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "topic", Detail: fmt.Sprintf("no partitioner has said that it reads a topic of %s", kind), WayOut: "start one; millrace topics show names what it reads"}
	case named == "" && len(fit) > 1:
		return "", 0, millrace.Invalid("topic", fmt.Sprintf("partitioners read several topics of %s", kind), fmt.Sprintf("name one of %v", fit))
	case named == "":
		named = fit[0]
	case !slices.Contains(fit, named):
		return "", 0, millrace.Invalid("topic", fmt.Sprintf("no partitioner reads %.70q as %s", named, kind), fmt.Sprintf("name one of %v", fit))
	}
	return named, all[named].future, nil
}
