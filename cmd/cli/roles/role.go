// Package roles has the commands that run a role until they are told to stop, the files
// that configure them, and what all roles have in common: ports, metrics, permissions and
// the audit log.
package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/version"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/auditlog"
	"github.com/millrace/millrace/internal/permit"
)

// Common is what every role's configuration file has.
type Common struct {
	Role          string        `yaml:"role,omitempty" choices:"partitioner, indexnode, broker, coordinator" doc:"which role the file is of, so that config check knows and another role refuses it"`
	Brokers       []string      `yaml:"brokers" form:"host:port" doc:"Kafka"`
	TopicPrefix   string        `yaml:"topic_prefix" doc:"stands before the names of Millrace's own topics; the same in every role"`
	Etcd          []string      `yaml:"etcd" form:"host:port" doc:"etcd; partitioners do not ask it"`
	Cluster       string        `yaml:"cluster" doc:"its name in etcd; the same in every role"`
	Admin         string        `yaml:"admin" form:"host:port" doc:"where livez, readyz, metrics, the log's levels and pprof are served; left out: nowhere"`
	Hosts         []string      `yaml:"hosts" doc:"names that plain HTTP may ask its ports by (Host), besides addresses, localhost, the machine's name and that in the port's own key; left out: on loopback no others, so that no web page has a name of its own lead there, and beyond loopback any"`
	Authorization permit.Config `yaml:"authorization"` // left out: every client of a port may do everything that it serves; only on loopback, or with insecure
	Audit         string        `yaml:"audit" form:"file" doc:"what others have the role do is written there: who, what, before and after; left out: in the log alone"`
	AuditTopic    string        `yaml:"audit_topic" doc:"the file of audit, which is then of this process alone, is copied to this topic, whose Kafka is brokers; left out: nowhere"`
	Traces        struct {
		Insecure bool `yaml:"insecure,omitempty" doc:"true: traces go to the collector of OTEL_EXPORTER_OTLP_ENDPOINT by plain text beyond loopback, where other means guard the network"`
	} `yaml:"traces,omitempty"`
	reach.Security `yaml:",inline"`
}

// tracesPlainly reports whether traces may go beyond loopback by plain text.
func (c *Common) tracesPlainly() bool { return c.Traces.Insecure }

// Files returns the kinds of configuration file that the program reads.
func Files() config.Files {
	return config.Files{All: []config.File{
		{Of: "partitioner", New: func() config.Configuration { return new(partitionerConfig) }},
		{Of: "indexnode", New: func() config.Configuration { return new(indexnodeConfig) }},
		{Of: "broker", New: func() config.Configuration { return new(brokerConfig) }},
		{Of: "coordinator", New: func() config.Configuration { return new(coordinatorConfig) }},
		{Of: "contexts", New: func() config.Configuration { return new(reach.Contexts) }},
	}, EveryRole: new(Common)}
}

// roleFlags is the help on flags and environment variables, which override the file.
const roleFlags = `Flags and variables of the environment go before the configuration: see "millrace
help connections". Certificates and files of passwords are read again when they
change. So do the flags below in which processes of a role differ, so that one
file serves all of them.

`

// roleCommand returns the command of a role. It reads a configuration file and calls run,
// which returns when the command's context ends or the role fails. example is the
// configuration in the help.
func roleCommand[C any, P interface {
	*C
	config.Configuration
	tracesPlainly() bool
}](name, short, example string, run func(context.Context, *C) error) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   name + " --config FILE",
		Short: short,
		Long:  short + ".\n\n" + roleFlags + fmt.Sprintf("The configuration file, in YAML; every key of it, with its default: millrace config reference %s. What is\nwrong with a file, before it is used: millrace config check --role %[1]s FILE.\n\n", name) + example,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg := P(new(C))
			gave, err := config.Read(file, cfg, c.Flags())
			if err != nil {
				return err
			}
			command.Private()
			said, err := document.Encode(cfg) // secrets encode as stars
			if err != nil {
				return err
			}
			slog.Info("starting", "role", name, "version", version.Here(), "config", string(said))
			tellExposed(file, cfg, gave)
			stop, err := startTraces(c.Context(), "millrace-"+name, cfg.tracesPlainly())
			if err != nil {
				return err
			}
			err = run(c.Context(), cfg)
			last, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), tracesFor)
			defer cancel()
			return command.ToldToStop(errors.Join(err, stop(last)))
		},
	}
	c.Flags().StringVar(&file, "config", "", "the configuration file")
	config.OwnFlags(c.Flags(), P(new(C)))
	if err := c.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

// ownSettings returns the settings in which the processes of one role differ. Flags and
// the environment can set them, so that all processes can have the same file.
func ownSettings(cfg any) []config.Setting {
	own := func(key, usage string, text *string) config.Setting {
		return config.Setting{Flag: key, Env: "MILLRACE_" + strings.ToUpper(key), Usage: usage, Text: text, Own: true}
	}
	switch c := cfg.(type) {
	case *partitionerConfig:
		return []config.Setting{own("instance", "this process's name, kept across restarts", &c.Instance)}
	case *indexnodeConfig:
		return []config.Setting{
			own("id", "the node's name, kept for life", (*string)(&c.ID)),
			own("advertise", "where brokers reach the node, host:port", &c.Advertise),
			own("zone", "where the process stands", &c.Zone),
		}
	case *brokerConfig:
		return []config.Setting{own("zone", "where the process stands", &c.Zone)}
	case *coordinatorConfig:
		return []config.Setting{own("name", "the coordinator's name", &c.Name)}
	}
	return nil
}

// role is what every running role has: metrics, the admin port, permissions and the audit
// log.
type role struct {
	metrics *prometheus.Registry
	group   *errgroup.Group    // runs the parts, the admin port and the copying of the audit log
	parts   sync.WaitGroup     // the parts that the method run has started and that have not ended
	end     context.CancelFunc // ends the admin port and the copying of the audit log
	permit  *permit.Policy     // who may do what
	told    *door.Refusals     // counts and logs what the ports turn away
	acts    *audit.Log         // who did what; nil: that is only in the process's log
}

// errStopping is what a role that was told to stop answers when it is asked whether it is
// ready.
var errStopping = errors.New("it is being stopped")

// newRole returns a role that serves its admin port, and the context of the role's work.
// ready returns why the role is not ready, or nil. When ctx ends, the role is told to
// stop. From then on it is not ready, and leave is called unless it is nil. The context of
// its work ends when leave returns; without leave, together with ctx.
func newRole(ctx context.Context, c *Common, ready func() error, leave func()) (*role, context.Context, error) {
	SpareCollector()
	r := &role{metrics: prometheus.NewRegistry()}
	r.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_build_info", Help: "1, with the version of the process and of Go.", ConstLabels: prometheus.Labels{"version": version.Here(), "goversion": runtime.Version()},
	}, func() float64 { return 1 }))
	r.metrics.MustRegister(admin.FileFaults(), admin.Certificates())
	r.told = door.NewRefusals(slog.Default(), r.metrics)
	told := ctx
	last, end := context.WithCancel(context.WithoutCancel(told))
	r.end = end
	if leave != nil {
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(last)
		context.AfterFunc(told, func() {
			leave()
			stop()
		})
	}
	r.group, ctx = errgroup.WithContext(ctx)
	var err error
	if r.permit, err = c.Authorization.Open(slog.Default()); err != nil {
		return nil, nil, err
	}
	if c.Audit != "" {
		if r.acts, err = audit.Open(c.Audit); err != nil {
			return nil, nil, err
		}
	}
	r.copyActs(last, c)
	if c.Admin != "" {
		l, err := r.listen(ctx, c, c.adminPort())
		if err != nil {
			return nil, nil, err
		}
		r.group.Go(func() error {
			return admin.Serve(last, l, r.permit.Handler(admin.Handler(r.metrics, func() error {
				if told.Err() != nil {
					return errStopping
				}
				return ready()
			}, command.LevelsOf(ctx).Handler(r.acts))))
		})
	}
	return r, ctx, nil
}

// copyActs starts to copy the audit log to its topic, until ctx ends. Without a topic it
// only registers the metrics.
func (r *role) copyActs(ctx context.Context, c *Common) {
	if c.AuditTopic == "" {
		r.metrics.MustRegister((*auditlog.Copier)(nil).Collector())
		return
	}
	host, _ := os.Hostname()
	copies := auditlog.New(auditlog.Config{File: c.Audit, Brokers: c.kafka(), Topic: c.AuditTopic, By: host + ":" + c.Audit, Log: slog.Default()})
	r.metrics.MustRegister(copies.Collector())
	r.group.Go(func() error {
		copies.Run(ctx)
		return nil
	})
}

// run starts a part of the role. When one part fails, the context of the role's work ends.
func (r *role) run(part func() error) {
	r.parts.Add(1)
	r.group.Go(func() error {
		defer r.parts.Done()
		return part()
	})
}

// wait waits until all parts have ended, then calls the functions of last in their order,
// which close what the parts used. The admin port serves until then. The error joins all
// errors.
func (r *role) wait(last ...func() error) error {
	r.parts.Wait()
	var errs []error
	for _, closes := range last {
		errs = append(errs, closes())
	}
	r.end()
	return errors.Join(append(errs, r.group.Wait(), r.acts.Close())...)
}

func (c *Common) adminPort() port {
	return port{field: "admin", addr: c.Admin, refusal: door.RefusalHTTP, open: c.Authorization.Probes || c.Authorization.ByToken()}
}

// listen listens on a port of the role, as [listen] does.
func (r *role) listen(ctx context.Context, c *Common, p port) (net.Listener, error) {
	p.told, p.hosts = r.told, c.Hosts
	return c.listen(ctx, p)
}

// listen listens on a port, as the function [listen] does, unless known refuses it.
func (c *Common) listen(ctx context.Context, p port) (net.Listener, error) {
	if err := c.known(p); err != nil {
		return nil, err
	}
	return listen(ctx, &c.Security, p)
}

// known refuses a port with TLS beyond loopback if no authorization says who may do what
// there, since many clients may have a certificate of the CA. "insecure: true" in the
// configuration allows it.
func (c *Common) known(p port) error {
	if !c.Authorization.On() && c.TLS.On() && !c.Insecure && c.Plain().Check(p.addr) != nil {
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "authorization", Detail: fmt.Sprintf("%s (%s) is beyond loopback, and whoever has a certificate of the CA could do everything there", p.field, p.addr),
			WayOut: "name identities and their roles, or say insecure: true if they may",
		}
	}
	return nil
}

// Validate reports all faults of what every role has, and of the role's own ports. The
// faults of Kafka's settings are among them only if a broker or coordinator has an audit
// topic: other roles check them elsewhere.
func (c *Common) Validate(role string, ports ...port) error {
	var errs []error
	if c.Role != "" && c.Role != role {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "role", Detail: fmt.Sprintf("the file is of another role than %s: %.40q", role, c.Role), WayOut: "give the role its own file"})
	}
	if c.Admin != "" {
		ports = append(ports, c.adminPort())
	}
	for i, p := range ports {
		_, err := guard(&c.Security, p)
		if errs = append(errs, err); p.addr != "" {
			errs = append(errs, c.known(p))
		}
		for _, other := range ports[:i] {
			if p.meets(other) {
				errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: p.field, Detail: fmt.Sprintf("%s is the port of %s too (%s)", p.addr, other.field, other.addr), WayOut: "give each a port of its own"})
			}
		}
	}
	for i, name := range c.Hosts {
		if name == "" || strings.ContainsAny(name, ":/*[] ") {
			errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: fmt.Sprintf("hosts[%d]", i), Detail: fmt.Sprintf("%.100q is no name of a host", name), WayOut: "write each name in full, without a port, such as feeds.example"})
		}
	}
	switch {
	case c.AuditTopic == "":
	case c.Audit == "":
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "audit_topic", Detail: "a topic is named, and no audit log that is copied to it", WayOut: "name the file in audit, or leave it out"})
	case len(c.Brokers) == 0:
		errs = append(errs, noKafka("audit_topic"))
	case role == "broker", role == "coordinator": // the other roles always need Kafka, and check it themselves
		errs = append(errs, c.kafka().Validate())
	}
	_, authorized := c.Authorization.Open(nil)
	_, calls := c.Dial()
	return errors.Join(append(errs, authorized, calls)...)
}

// Settings returns the settings of every role that flags or the environment can give.
func (c *Common) Settings() []config.Setting {
	return append(reach.SettingsOf(&c.Security), config.Setting{Env: "MILLRACE_TOKENS", Text: &c.Authorization.Tokens}, config.Setting{Env: "MILLRACE_TRACES_INSECURE", On: &c.Traces.Insecure})
}

// Complete fills in the defaults of what the file leaves out.
func (c *Common) Complete() { c.Cluster = c.clusterName() }

// kafka returns how the role reaches Kafka; the zero value if the file names no brokers.
func (c *Common) kafka() kafka.Brokers {
	if len(c.Brokers) == 0 {
		return kafka.Brokers{}
	}
	return c.Connections.Kafka.At(slog.Default(), c.Brokers...)
}

func (c *Common) clusterName() string { return cmp.Or(c.Cluster, "millrace") }

// checkDir refuses a data directory of another cluster or node, and returns the instance
// that the directory names. It returns the zero instance for data "".
func (c *Common) checkDir(data string, id millrace.NodeID) (instance datadir.Instance, err error) {
	if data == "" {
		return instance, nil
	}
	if err := keepPrivate(data); err != nil {
		slog.Warn("others may read what is in the data directory", "data", data, "err", err)
	}
	return datadir.CheckDir(data, c.clusterName(), id)
}

// checkPlace refuses a data directory that cannot be made, since its path or a part of it
// is no directory.
func checkPlace(data string) error {
	for at := data; at != ""; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		switch {
		case err == nil && !info.IsDir():
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "data", Detail: fmt.Sprintf("%s cannot be a directory: %s is there, and is none", data, at), WayOut: "name a directory, or a place where one can be made"}
		case err == nil || at == filepath.Dir(at):
			return nil
		}
	}
	return nil
}

// openCluster opens a client of the cluster's etcd. If dir is not empty, the client keeps in
// dir the last good state that it read, so that the role can start while etcd is away.
func (r *role) openCluster(ctx context.Context, c *Common, dir string) (*cluster.Client, error) {
	cfg := c.inEtcd(dir)
	cfg.Metrics = r.metrics
	return cluster.Open(ctx, cfg)
}

// inEtcd returns how the role reaches its cluster in etcd. dir is as in openCluster.
func (c *Common) inEtcd(dir string) cluster.Config {
	return cluster.Config{Endpoints: c.Etcd, Access: c.Connections.Etcd, Name: c.clusterName(), Dir: dir, Log: slog.Default()}
}

// waiting returns the reason why a role is not ready while it has not yet read its cluster's
// state.
func (c *Common) waiting() error { return fmt.Errorf("waiting for etcd at %v", c.Etcd) }

// DrainFor is the default of how long a node or broker still serves when it is told to
// stop. By then every broker knows that it should not ask the node, and callers, or their
// load balancer, know the same of the broker. Brokers hear of a change within a second.
const DrainFor = 5 * time.Second

// noKafka returns the fault of a file that names a topic under the key field, and no Kafka.
func noKafka(field string) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: "a topic is named, and no Kafka that has it", WayOut: "name its brokers, host:port each, or leave it out"}
}
