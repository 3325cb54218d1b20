package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/cli/experiments"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/rollouts"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

func (d *doctor) etcdAnswers(ctx context.Context) (string, error) {
	l, err := d.Look(ctx)
	if d.etcdAway = err != nil; err != nil {
		return "", err
	}
	d.etcdDoubted = l.Health.Lost || cluster.Doubted(l.Fault)
	if d.etcdFull = errors.Is(l.Fault, dial.ErrFull); d.etcdFull {
		return "", finding(dial.FullWayOut, "%v", l.Fault)
	}
	if l.Fault != nil {
		return "", d.advise(ctx, l, l.Fault.Error())
	}
	if unresponsive := l.UnresponsiveEtcd(); unresponsive != "" {
		return "", warning{unresponsive}
	}
	return "cluster " + d.Name(), nil
}

// advise returns what, a fault of the state in etcd, as an error with its way out. Where
// the cluster ever had an assignment the way out is to restore it. It is a new assignment
// only where there never was one.
func (d *doctor) advise(ctx context.Context, l clusters.Look, what string) error {
	if l.Health.Lost {
		return finding(cluster.RestoreWayOut, "%s; nodes remember what it has lost", what)
	}
	if l.Health.Epoch > 0 || l.Fault != nil && !errors.Is(l.Fault, keyspace.ErrNothing) {
		return finding(l.MendWayOut(), "%s", what)
	}
	n, err := d.records(ctx, kafka.Prefixed(d.topicPrefix).Timeline)
	switch {
	case err == nil && n > 0:
		return finding(cluster.RestoreWayOut, "%s; this cluster has been at work, since its timeline topic holds %d records", what, n)
	case err != nil:
		return finding("bring Kafka back, and ask again: its log tells whether there was an assignment, which is restored and not made anew", "%s; whether there was more cannot be told while Kafka does not answer", what)
	}
	return finding(clusters.AssignWayOut, "%s", what)
}

func (d *doctor) assigned(ctx context.Context) (string, error) {
	l, err := d.Look(ctx)
	if err != nil {
		return "", err
	}
	d.lost = l.Health.Lost
	if d.unassigned = d.lost || l.Health.Epoch == 0; d.unassigned {
		return "", d.advise(ctx, l, l.Health.Faults()[0])
	}
	a := l.Map.Assignment()
	return fmt.Sprintf("epoch %d, %d nodes, %d replicas", a.Epoch, len(a.Nodes()), l.Health.Replicas), nil
}

func (d *doctor) nodesReady(ctx context.Context) (string, error) {
	l, err := d.Look(ctx)
	if err != nil {
		return "", err
	}
	faults := strings.Join(l.Health.Faults(), "\n")
	full, alone := l.Health.Full()
	switch {
	case faults != "" && d.logGone:
		return "", finding("see to the log first, above", "%s", faults)
	case faults != "" && d.kafkaAway:
		return "", finding("bring Kafka back first: nodes that cannot ask it are stale, which mends itself", "%s", faults)
	case faults != "" && len(full) > 0:
		way := fmt.Sprintf("free space on the disks of %s, as much as it says where it says: they go on by themselves, and need no restart", full)
		if !alone {
			way += "; start the nodes that are gone; of the others look at the log and /readyz"
		}
		return "", finding(way, "%s", faults)
	case faults != "" && l.TakenOut():
		return "", finding("start the nodes that are gone; what an operator has taken out (by_operator) is made anew by millrace partition release PARTITION --node NODE --apply; of the others look at the log and /readyz", "%s", faults)
	case faults != "":
		return "", errors.New(faults)
	}
	if warnings := l.Health.Warnings(); len(warnings) > 0 {
		return "", warning{strings.Join(warnings, "\n")}
	}
	return fmt.Sprintf("%d of %d partitions by %d replicas each", partition.Count, partition.Count, l.Health.Replicas), nil
}

// modelsGood fails for versions of models that serve and that no node has. It warns of
// versions that some nodes lack, that are condemned, or that cannot be read.
func (d *doctor) modelsGood(ctx context.Context) (string, error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	serve, nowhere, lines, err := rollouts.ModelFaults(ctx, cl)
	if err != nil {
		return "", err
	}
	if len(nowhere) > 0 {
		return "", finding("mend what the nodes say, or let another version serve: millrace model rollback, or push one that is mended", "%s", strings.Join(append(nowhere, lines...), "\n"))
	}
	if len(lines) > 0 {
		return "", warning{strings.Join(lines, "\n")}
	}
	return fmt.Sprintf("%d serve", serve), nil
}

// feedsWhole fails for feeds whose every request is refused, since their model does not
// serve. It warns of definitions that brokers cannot take over.
func (d *doctor) feedsWhole(ctx context.Context) (string, error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	feeds, refused, lines, err := rollouts.FeedFaults(ctx, cl)
	if err != nil {
		return "", err
	}
	if len(refused) > 0 {
		return "", errors.New(strings.Join(append(refused, lines...), "\n"))
	}
	if len(lines) > 0 {
		return "", warning{strings.Join(lines, "\n")}
	}
	return fmt.Sprintf("%d", feeds), nil
}

// coordinatorLeads warns where nobody repairs, or a plan is paused.
func (d *doctor) coordinatorLeads(ctx context.Context) (string, error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	who, leads, err := cl.Leader(ctx)
	if err != nil {
		return "", err
	}
	if !leads {
		text := "none does: replicas that are lost are not made elsewhere, plans wait, ramps stand still, and no guard pauses an experiment; "
		if d.etcdFull {
			return "", warning{text + "those that run cannot, while etcd takes no write: free its space, above"}
		}
		return "", warning{text + "start one: millrace coordinator --config FILE"}
	}
	s, _, err := coordinator.Look(ctx, cl)
	if err != nil {
		return who.Name, err
	}
	if still := s.Plan.Standstill(); still != "" {
		return who.Name, warning{who.Name + "; " + still}
	}
	return who.Name, nil
}

// experimentsWhole warns of experiments that give nobody a variant though they may, or
// whose answers count for none, and of documents that cannot be taken over.
func (d *doctor) experimentsWhole(ctx context.Context) (string, error) {
	cl, err := d.OpenReadOnly(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	says, lines, err := experiments.Faults(ctx, cl)
	if err != nil {
		return "", err
	}
	if len(lines) > 0 {
		return "", warning{strings.Join(lines, "\n")}
	}
	return says, nil
}

// brokersHear fails for brokers that do not go by what etcd has. It warns of brokers that
// are silent: they may have ended.
func (d *doctor) brokersHear(ctx context.Context) (string, error) {
	all, err := d.Brokers(ctx)
	if err != nil {
		return "", err
	}
	var names, lines []string
	faulty := len(clusters.BrokerFaults(all)) > 0
	for _, b := range all {
		if names = append(names, b.Name); !b.Well() {
			line := b.Name + ": " + b.State() + "; if it still answers, it goes on with what it took over before"
			if b.Admin != "" {
				line += "; see millrace doctor --admin " + b.Admin
			}
			lines = append(lines, line)
		}
	}
	switch {
	case faulty:
		return "", errors.New(strings.Join(lines, "\n"))
	case len(lines) > 0:
		return "", warning{strings.Join(lines, "\n")}
	case len(names) == 0:
		return "", warning{"no broker is registered: whether one hears of changes is not known, unless by --admin"}
	}
	return strings.Join(names, ", "), nil
}

func (d *doctor) brokerAnswers(ctx context.Context) (string, error) {
	c, err := reach.Broker(ctx, d.grpc)
	if err != nil {
		return "", err
	}
	defer c.Close()
	began := time.Now()
	resp, err := c.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: d.feed, Viewer: &feedv1.Viewer{Id: "doctor"}, Entities: []string{"member:1"}})
	took := fmt.Sprintf("in %.1f ms", float64(time.Since(began).Microseconds())/1000)
	switch e := (*millrace.Error)(nil); {
	case !errors.As(err, &e):
	case e.Reason == millrace.ReasonUnavailable:
		return "", errors.New(e.Detail) // without its way out, which is to try again
	case e.Detail == feeds.BuiltInRefused(d.feed).Detail:
		return took + "; index nodes were not asked: " + e.Detail + "; --feed names one that is", nil
	}
	if err != nil {
		return "", err
	}
	if len(resp.Coverage.GetMissing()) > 0 {
		return "", finding("see to the index nodes: the broker is well", "the answer misses partition %d: %s", resp.Coverage.Missing[0].Partition, resp.Coverage.Missing[0].Reason)
	}
	return took, nil
}
