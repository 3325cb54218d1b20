package models

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas/registry"
)

// source finds models in files and in a cluster. The schemas that they read come from files,
// and from the log, the Kafka of the cluster.
type source struct {
	cm    *clusters.Flags
	kafka *reach.KafkaFlags
	avsc  *[]string // files of schemas
	named bool      // the cluster is to be read: a flag or a context names it, or the replayed model was found in it

	logged *registry.Snapshot // the schemas in the log; nil until readLog has read them
}

// opened is a model, and where it was found.
type opened struct {
	model *relevance.Model
	sum   string // the checksum of its pack; "" without one
	named bool   // rows of exposures can name the model, since it is built in or has a pack
	from  string // where it was found, in words
}

// open finds the model that name means: one in files, a built-in one, or the version that
// serves in the cluster.
func (s *source) open(ctx context.Context, name string) (*opened, error) {
	builtin := slices.Contains(relevance.Builtin().Names(), name)
	if isName(name) && !builtin {
		return s.served(ctx, name)
	}
	o := &opened{from: "of " + name}
	if plainName(name) && !isName(name) {
		o.from = "of " + name + " in this directory, whatever serves under that name"
	}
	var pack *modelpack.Pack
	err := s.knowing(ctx, false, func(known *registry.Snapshot) (err error) {
		o.model, pack, err = modelAmong(name, known)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case pack != nil:
		o.named = true
		o.sum, err = pack.Sum()
	case isName(name):
		o.named, o.from = true, "built in"
	}
	return o, err
}

// served returns the version of a model that serves in the cluster.
func (s *source) served(ctx context.Context, name string) (*opened, error) {
	var o *opened
	return o, s.inCluster(ctx, func(ctx context.Context, cl *cluster.Client) error {
		models, err := artefacts.Watch(ctx, cl, indexnode.ModelsKind)
		if err != nil {
			return err
		}
		v, serves := models.Served(name)
		if !serves {
			return &millrace.Error{Reason: millrace.ReasonUnknown, Field: "model", Detail: fmt.Sprintf("no version of model %.100q serves, and no built-in model or file has that name", name), WayOut: "millrace model list names what serves"}
		}
		s.named = true // the replayed model is of the cluster, so the models of variants are looked for there too
		m, err := modelOf(ctx, models, v, s.validate(ctx))
		o = &opened{m, v.Sum, true, "which serves in cluster " + s.cm.Name()}
		return err
	})
}

// fetch adds the models in want, and the weights that variants of the experiment set, to have
// from the cluster.
func (s *source) fetch(ctx context.Context, have *shelf, experiment string, want []ranking) error {
	return s.inCluster(ctx, func(ctx context.Context, cl *cluster.Client) error {
		return have.fetch(ctx, cl, experiment, want, s.validate(ctx))
	})
}

// inCluster calls use with a client that only reads the cluster's state in etcd.
func (s *source) inCluster(ctx context.Context, use func(context.Context, *cluster.Client) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cl, err := s.cm.OpenReadOnly(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	return use(ctx, cl)
}

// validate returns a function that returns the model of a pack from the cluster. It reads
// the log if the schemas of files lack one that the model names.
func (s *source) validate(ctx context.Context) func(*modelpack.Pack) (*relevance.Model, error) {
	return func(p *modelpack.Pack) (m *relevance.Model, err error) {
		avsc, err := schemafiles.Snapshot(*s.avsc)
		if err != nil {
			return nil, err
		}
		if known := relevance.SchemasOf(avsc); p.KnownTo(known) {
			return modelpack.Validate(p, known)
		}
		return m, s.knowing(ctx, true, func(known *registry.Snapshot) (err error) {
			m, err = modelpack.Validate(p, relevance.SchemasOf(known))
			return err
		})
	}
}

// logWait is how long the reading of the schemas in the log may take.
const logWait = 30 * time.Second

// knowing calls read with the schemas of files. If read fails, knowing calls it once more, with
// the schemas of files and those of the log. The log is in the Kafka that flags name. If they
// name none and cluster is true, the log is in the Kafka at the default address. If they name
// none and cluster is false, there is no log, and knowing returns the error of read.
func (s *source) knowing(ctx context.Context, cluster bool, read func(*registry.Snapshot) error) error {
	known, err := schemafiles.Snapshot(*s.avsc)
	if err != nil {
		return err
	}
	unread := read(known)
	at := s.kafka.Brokers
	if cluster && len(at) == 0 {
		at = []string{reach.DefaultBroker}
	}
	if unread == nil || len(at) == 0 {
		return unread
	}
	if err := s.readLog(ctx, at); err != nil {
		return fmt.Errorf("%w; the schemas of the cluster cannot be read: %w", unread, err)
	}
	if known, err = schemafiles.Beside(s.logged, *s.avsc); err != nil {
		return errors.Join(unread, err)
	}
	return read(known)
}

// readLog reads the schemas in the log into s.logged, the first time that it is called.
func (s *source) readLog(ctx context.Context, brokers []string) error {
	if s.logged != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, logWait)
	defer cancel()
	return reach.WithSchemas(ctx, reach.Kafka(ctx, brokers), s.kafka.Topics(), func(_ *schemalog.Log, known *registry.Snapshot) error {
		s.logged = known
		return nil
	})
}
