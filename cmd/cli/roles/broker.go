package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/cmd/cli/version"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/exposures"
)

// ClosesFor is the most time that a broker takes after its last request to leave the
// cluster, to write the exposures (records of what answers showed) that wait, and to send
// its traces.
const ClosesFor = cluster.CallTimeout + exposure.DefaultDrain + tracesFor

// FinishFor is how long requests in flight have to end when a broker stops answering. It
// equals the broker's time limit for a request, the default of broker.Config.Timeout.
const FinishFor = 10 * time.Second

// brokerConfig is the configuration file of a broker. The tags doc describe its keys.
type brokerConfig struct {
	Common        `yaml:",inline"`
	Data          string                     `yaml:"data" form:"directory" doc:"keeps what was last known of the cluster, should etcd be away; left out: it starts only with etcd"`
	HTTP          string                     `yaml:"http" form:"host:port" doc:"where it serves JSON; left out: nowhere"`
	GRPC          string                     `yaml:"grpc" form:"host:port" doc:"where it serves gRPC"`
	Feeds         string                     `yaml:"feeds" form:"directory" doc:"feed definitions, *.yaml, beside those of the cluster"`
	Zone          string                     `yaml:"zone" doc:"where it stands: index nodes of the same are asked first"`
	Quotas        map[string]admission.Quota `yaml:"quotas" name:"CALLER"`
	Connections   int                        `yaml:"connections" range:"0.." doc:"connections to each port at a time; one address, and one identity, has half of them at most, and an address an eighth of which no request was let in yet"`
	RequestMemory int64                      `yaml:"request_memory_mib" unit:"MiB" doc:"for all requests: a half until they are read, a half for answers until they are taken; the default is the least"`
	Forbid        feeds.Forbid               `yaml:"forbid"` // what no caller may ask of this broker
	Exposures     string                     `yaml:"exposures" doc:"a topic for what answers of experiments showed, whose Kafka is brokers; left out: none is written"`
	Drain         *time.Duration             `yaml:"drain" range:"0s.." doc:"how long it goes on answering when it is told to stop, while callers look elsewhere"`
}

func (c *brokerConfig) Settings() []config.Setting {
	return append(c.Common.Settings(), ownSettings(c)...)
}

func (c *brokerConfig) Complete() {
	c.Common.Complete()
	c.Connections = cmp.Or(c.Connections, door.DefaultConns)
	c.RequestMemory = cmp.Or(c.RequestMemory, broker.DefaultRequestMemory>>20)
	drain := c.drain()
	c.Drain = &drain
}

// drain is how long the broker goes on answering when it is told to stop.
func (c *brokerConfig) drain() time.Duration {
	if c.Drain != nil {
		return *c.Drain
	}
	return DrainFor
}

func (c *brokerConfig) Validate() error {
	b, err := c.broker()
	b.Maps = new(cluster.Watcher) // b.Validate refuses nil; the command sets the real watcher
	ports := []port{c.grpcPort()}
	if c.HTTP != "" {
		ports = append(ports, c.httpPort())
	}
	return errors.Join(c.Common.Validate("broker", ports...), err, c.inEtcd("").Validate(), checkPlace(c.Data), c.checkExposures(), c.checkQuotas(), b.Validate())
}

// checkQuotas refuses a quota for a name without the prefix "token:" or "jwt:" if only
// the identity with that prefix exists: the quota would apply to nobody.
func (c *brokerConfig) checkQuotas() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Quotas)) {
		for _, kind := range []string{"token:", "jwt:"} {
			_, certificate := c.Authorization.Identities[name]
			if _, other := c.Authorization.Identities[kind+name]; other && !certificate {
				errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "quotas." + name, Detail: "authorization.identities has no certificate of this name, but " + kind + name, WayOut: "write the quota of " + kind + name})
			}
		}
	}
	return errors.Join(errs...)
}

func (c *brokerConfig) grpcPort() port {
	return port{field: "grpc", addr: c.GRPC, conns: c.Connections, open: c.Authorization.ByToken()}
}

func (c *brokerConfig) httpPort() port {
	return port{field: "http", addr: c.HTTP, conns: c.Connections, refusal: door.RefusalHTTP, open: c.Authorization.ByToken()}
}

// broker returns the part of the broker's configuration that follows from the file. The
// command adds what it opens.
func (c *brokerConfig) broker() (broker.Config, error) {
	feeds, err := readFeeds(c.Feeds)
	if err != nil { // a definition is wrong, or the directory is not there
		err = &millrace.Error{Reason: millrace.ReasonInvalid, Field: "feeds", Detail: err.Error(), WayOut: "mend the definitions, or take them out"}
	}
	return broker.Config{Feeds: feeds, Zone: c.Zone, Quotas: c.Quotas, RequestMemory: c.RequestMemory << 20, Forbid: c.Forbid, Log: slog.Default()}, err
}

func (c *brokerConfig) checkExposures() error {
	switch {
	case c.Exposures == "":
		return nil
	case len(c.Brokers) == 0:
		return noKafka("exposures")
	case slices.Contains(kafka.Prefixed(c.TopicPrefix).All(), c.Exposures):
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "exposures", Detail: fmt.Sprintf("%s is Millrace's own topic for other things", c.Exposures), WayOut: "name another, such as exposures"}
	}
	return c.kafka().Validate()
}

// exposures opens the log of exposures, the topic of what answers showed, and returns a
// function that closes it and may be called again. The log is nil if the configuration names
// no topic.
func (c *brokerConfig) exposures(metrics prometheus.Registerer) (broker.Exposures, func(), error) {
	if c.Exposures == "" {
		return nil, func() {}, nil
	}
	brokers := c.kafka()
	records, closes, err := exposures.OpenLog(brokers, c.Exposures, slog.Default())
	if err != nil {
		return nil, nil, err
	}
	metrics.MustRegister(records, brokers.Collector("millrace_exposure"))
	return records, sync.OnceFunc(closes), nil
}

// Broker returns the command that runs a broker.
func Broker() *cobra.Command {
	return roleCommand("broker", "Answer feed requests", `  etcd: [etcd-1:2379]
  grpc: 127.0.0.1:9090
  http: 127.0.0.1:8080         # JSON
  feeds: feeds/                # feed definitions, *.yaml, beside those of the cluster
  data: /var/lib/millrace      # what was last known of the cluster, should etcd be away
  quotas:                      # of requests, by the header millrace-caller
    jobs-page: {per_second: 200, burst: 400, at_once: 20}
    default: {per_second: 50}  # all other callers together; left out: no limit
  connections: 4096            # of each port at a time
  request_memory_mib: 256      # for all requests: a half until they are read, a half for answers until they are taken
  forbid: {why: true}          # what callers may not ask of it: filter, explain, why, model, window, recent
  zone: a                      # index nodes of the same are asked first
  exposures: exposures         # a topic of what answers of experiments showed; left out: none is written
  brokers: [kafka-1:9092]      # that have it
  drain: 5s                    # how long it answers on when it is told to stop and callers look elsewhere
  admin: 127.0.0.1:6060`, func(ctx context.Context, c *brokerConfig) (err error) {
		var heard atomic.Pointer[cluster.Watcher]
		var serving atomic.Pointer[broker.Broker]
		r, ctx, err := newRole(ctx, &c.Common, func() error {
			switch maps := heard.Load(); {
			case maps == nil:
				return c.waiting()
			case maps.Current().Epoch() == 0:
				return errors.New("the cluster has no assignment yet")
			case serving.Load() == nil:
				return c.waiting()
			}
			return nil
		}, func() {
			if b := serving.Load(); b != nil {
				slog.Info("the broker is to be asked no more, and stops soon", "in", c.drain())
				b.Leave()
				time.Sleep(c.drain())
			}
		})
		if err != nil {
			return err
		}
		grpcs, err := r.listen(ctx, &c.Common, c.grpcPort())
		if err != nil {
			return err
		}
		defer grpcs.Close()
		var https net.Listener
		if c.HTTP != "" {
			if https, err = r.listen(ctx, &c.Common, c.httpPort()); err != nil {
				return err
			}
			defer https.Close()
		}
		instance, err := c.checkDir(c.Data, "")
		if err != nil {
			return err
		}
		cl, err := r.openCluster(ctx, &c.Common, clusters.LastGood(c.Data))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		maps, err := cl.Watch(ctx)
		if err != nil {
			return err
		}
		heard.Store(maps)
		cfg, err := c.broker()
		if err != nil {
			return err
		}
		dial, err := c.Dial()
		if err != nil {
			return err
		}
		in, err := watchServed(ctx, cl)
		if err != nil {
			return err
		}
		exposures, closeExposures, err := c.exposures(r.metrics)
		if err != nil {
			return err
		}
		defer closeExposures()
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		cfg.Permit, cfg.Exposures, cfg.Name, cfg.Maps, cfg.Dial = r.permit, exposures, host+" "+c.GRPC, maps, fanout.DialGRPC(dial)
		cfg.Definitions, cfg.Models, cfg.Condemned, cfg.Experiments = in.definitions, in.models, in.condemned, in.experiments
		cfg.PageKeys, cfg.Traced, cfg.Metrics = in.pages.Current, in.traced, r.metrics
		b, err := broker.New(cfg)
		if err != nil {
			return err
		}
		leave := brokers.Announce(cl, brokers.Broker{Name: cfg.Name, Addr: reached(c.GRPC, host), Admin: reached(c.Admin, host), Version: version.Here()},
			instance.Word, in.definitions, in.models, in.condemned, in.experiments, in.pages, in.traced)
		if https != nil {
			r.run(func() error { return admin.ServeBy(ctx, https, b.HTTPServer(), FinishFor) })
		}
		server := grpc.NewServer(b.ServerOptions()...)
		b.RegisterGRPC(server)
		serving.Store(b)
		r.run(func() error {
			defer context.AfterFunc(ctx, func() { b.Stop(server, FinishFor) })()
			return server.Serve(b.Guard(grpcs))
		})
		return r.wait(func() error {
			if err := leave(context.WithoutCancel(ctx)); err != nil {
				slog.Warn("the broker stays registered for some minutes", "err", err)
			}
			err := b.Close() // ends the ranking by shadow models, which writes exposures too; then the log can close
			closeExposures()
			return err
		})
	})
}

// served is what a broker watches in etcd.
type served struct {
	definitions, models, experiments *artefacts.Kind
	condemned                        *artefacts.Condemned // versions that must not serve
	pages                            *secrets.Generations // keys of page tokens
	traced                           *brokers.Traced      // viewers whose requests are traced
}

// watchServed watches in etcd what [served] has, until ctx ends.
func watchServed(ctx context.Context, cl *cluster.Client) (in served, err error) {
	if in.definitions, err = artefacts.Watch(ctx, cl, feeds.Kind); err != nil {
		return in, err
	}
	if in.models, err = artefacts.Watch(ctx, cl, indexnode.ModelsKind); err != nil {
		return in, err
	}
	if in.experiments, err = artefacts.Watch(ctx, cl, experiments.Kind); err != nil {
		return in, err
	}
	if in.condemned, err = artefacts.WatchCondemned(ctx, cl); err != nil {
		return in, err
	}
	if in.pages, err = secrets.Watch(ctx, cl, pagetoken.Secret); err != nil {
		return in, err
	}
	in.traced = brokers.WatchTraced(ctx, cl)
	return in, nil
}

// reached returns the address at which others reach a listener on addr. If it listens on
// all addresses of the host, that is the host's name and the port.
func reached(addr, host string) string {
	at, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(at); err == nil && (at == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort(host, port)
	}
	return addr
}

// readFeeds reads every *.yaml definition of a directory. The error joins the faults of
// all files. It returns nothing for dir "".
func readFeeds(dir string) ([]feeds.Feed, error) {
	if dir == "" {
		return nil, nil
	}
	if _, err := os.ReadDir(dir); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var all []feeds.Feed
	var errs []error
	for _, file := range files {
		text, err := document.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f, err := feeds.Parse(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		all = append(all, f)
	}
	return all, errors.Join(errs...)
}
