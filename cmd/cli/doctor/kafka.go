package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/topics"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/partition"
)

func (d *doctor) kafkaAnswers(ctx context.Context) (string, error) {
	err := kafka.WaitReady(ctx, reach.Kafka(ctx, d.brokers))
	d.kafkaAway = err != nil
	return fmt.Sprint(d.brokers), err
}

// logWhole warns of topics that no longer have their beginning: only today's replicas
// hold the records that are gone.
func (d *doctor) logWhole(ctx context.Context) (string, error) {
	look, err := kafka.NewInspector(reach.Kafka(ctx, d.brokers))
	if err != nil {
		return "", err
	}
	defer look.Close()
	var begins []string
	for _, topic := range kafka.Prefixed(d.topicPrefix).Logs() {
		starts, err := look.Starts(ctx, topic)
		if err != nil {
			return "", err
		}
		trimmed, gone := 0, int64(0)
		for _, start := range starts {
			if gone += int64(start); start > 0 {
				trimmed++
			}
		}
		if trimmed > 0 {
			begins = append(begins, fmt.Sprintf("%s has lost its beginning in %d of %d partitions, %d records at most", topic, trimmed, len(starts), gone))
		}
	}
	if len(begins) > 0 {
		return "", warning{strings.Join(begins, "\n") + "\na replica that is lost cannot be made whole again from the log: keep the index nodes' disks, and retention off"}
	}
	return "from its beginning", nil
}

func (d *doctor) topicsFit(ctx context.Context) (string, error) {
	topics := kafka.Prefixed(d.topicPrefix)
	log, err := kafka.InspectTopics(ctx, reach.Kafka(ctx, d.brokers), topics)
	if err != nil {
		return "", err
	}
	for _, t := range []struct {
		kafka.LogTopic
		count int
	}{{log.Timeline, partition.Count}, {log.Features, partition.Count}, {log.Schemas, 1}, {log.DeadLetters, 1}, {log.Progress, 1}} {
		if t.Partitions == 0 {
			d.logMissing = true
			return "", d.missing(ctx, t.Name, slices.Contains(topics.Logs(), t.Name))
		}
		if t.Partitions != t.count {
			return "", fmt.Errorf("topic %s has %d partitions, not %d", t.Name, t.Partitions, t.count)
		}
	}
	if deletes := log.Deletes(); len(deletes) > 0 {
		return "", finding("set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1 on them: a node without its disk is rebuilt from them", "%s", strings.Join(deletes, "\n"))
	}
	if t := log.Schemas; t.CleanupPolicy != "compact" {
		return "", finding("set cleanup.policy=compact on it: records of a schema that is deleted cannot be read", "topic %s has cleanup.policy=%s", t.Name, t.CleanupPolicy)
	}
	if t := log.Progress; t.CleanupPolicy != "compact" {
		return "", finding("set cleanup.policy=compact on it: how far groups are and what operators had them do would go with time, or be read from the beginning by every start", "topic %s has cleanup.policy=%s", t.Name, t.CleanupPolicy)
	}
	if what := log.DeadLetters.Deletes(); what != "" {
		return "", warning{what + "\nwhat it no longer has cannot be replayed: set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1 on it, or replay in time what is to come in after all"}
	}
	dead, err := d.records(ctx, topics.DeadLetters)
	return fmt.Sprintf("%d partitions; at most %d dead letters", partition.Count, dead), err // at most, since transactions use offsets, too
}

// missing returns the error for a topic that does not exist. It sets d.logGone if the topic
// is one of the log of record and nodes have read it, or if etcd does not answer. The role
// that starts first must not create such a topic anew: what the nodes hold would be of
// another log.
func (d *doctor) missing(ctx context.Context, topic string, isLog bool) error {
	if !isLog {
		return fmt.Errorf("topic %s does not exist", topic)
	}
	l, err := d.Look(ctx)
	if d.logGone = err != nil || l.Read(); !d.logGone {
		return fmt.Errorf("topic %s does not exist", topic)
	}
	const nothing = "start nothing and restart nothing, which would make it anew, and empty"
	if err != nil {
		return finding(nothing+"; bring etcd back first, which tells whether nodes have read it", "topic %s does not exist; whether it ever did is not known while etcd does not answer", topic)
	}
	return finding(nothing+`: every partition would be quarantined (other_log). Nodes that run answer from what they hold: see "The log is gone" in docs/backup.md`, "topic %s is gone, which index nodes have read", topic)
}

// records returns how many offsets of a topic have been used: its records, at most.
func (d *doctor) records(ctx context.Context, topic string) (sum int64, err error) {
	look, err := kafka.NewInspector(reach.Kafka(ctx, d.brokers))
	if err != nil {
		return 0, err
	}
	defer look.Close()
	ends, err := look.Ends(ctx, topic)
	for _, end := range ends {
		sum += int64(end)
	}
	return sum, err
}

var errNoPartitioner = finding("start one: millrace partitioner --config FILE", "no partitioner has ever reported progress")

func (d *doctor) partitionersKeepUp(ctx context.Context) (string, error) {
	topics := kafka.Prefixed(d.topicPrefix)
	look, err := kafka.InspectTopics(ctx, reach.Kafka(ctx, d.brokers), topics)
	if err != nil {
		return "", err
	}
	if look.Progress.Partitions == 0 {
		return "", errNoPartitioner
	}
	log, err := progress.Open(progress.Config{Brokers: reach.Kafka(ctx, d.brokers), Topic: topics.Progress})
	if err != nil {
		return "", err
	}
	defer log.Close()
	if err := log.Refresh(ctx); err != nil {
		return "", err
	}
	groups := log.Groups()
	if len(groups) == 0 {
		return "", errNoPartitioner
	}
	var faults []string
	for _, g := range groups {
		faults = append(faults, groupFaults(g, time.Now())...)
	}
	return fmt.Sprintf("%d groups", len(groups)), behind(faults)
}

// behind returns the faults of groups as an error, or nil if there are none. It has a way
// out where each fault is that a topic does not exist.
func behind(faults []string) error {
	says := strings.Join(faults, "\n")
	switch {
	case len(faults) == 0:
		return nil
	case slices.ContainsFunc(faults, func(f string) bool { return !strings.HasSuffix(f, noTopic) }):
		return errors.New(says)
	}
	return finding("create it with Kafka's tools, with as many partitions as you want, or take it out of content and features in the partitioner's configuration", "%s", says)
}

// noTopic ends the fault that a topic does not exist, by which behind knows it.
const noTopic = " does not exist"

// groupFaults returns what is wrong with a group of partitioners; nil if nothing is.
func groupFaults(g progress.Progress, now time.Time) (faults []string) {
	if silent := topics.Silence(g, now); silent != "" {
		return []string{silent}
	}
	if g.ThroughMillis == 0 {
		faults = append(faults, fmt.Sprintf("group %s has not proven yet that anything is partitioned", g.Group))
	} else if behind := now.Sub(g.Through()); behind > topics.HeartbeatLimit {
		faults = append(faults, fmt.Sprintf("group %s is %s behind its topics", g.Group, behind.Round(time.Second)))
	}
	if g.OtherLog != "" {
		faults = append(faults, g.OtherLog)
	}
	for _, t := range g.Missing {
		faults = append(faults, fmt.Sprintf("group %s: topic %s", g.Group, t)+noTopic)
	}
	for _, s := range g.Stuck {
		faults = append(faults, fmt.Sprintf("group %s: %s", g.Group, s.Says(g.Group)))
	}
	return faults
}
