package indexnode

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/packs"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/indexnode/warm"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/wait"
	"github.com/millrace/millrace/schemas"
)

// ModelsKind is the kind of the cluster's artefacts that are model packs, each
// version a .tar.zst under its model's name.
const ModelsKind = "models"

// hosting is what connects a running node with the rest of the cluster: it hears from etcd
// which partitions to host, tells the cluster how the replicas are, and has the connections
// to the log that they read.
type hosting struct {
	node      *Node
	consumer  *streams.Consumer
	producer  *kafka.Producer // of dead letters
	schemaLog *schemalog.Log
	progress  *progress.Log
	member    *members.Membership
	watcher   *cluster.Watcher
	keeper    *backups.Keeper // nil: there are no backups
	warmer    *warm.Warmer    // nil: a backup node answers nobody
}

// newHosting opens the clients of Kafka and of the backups. It waits for no connection,
// since Kafka may be away.
func (n *Node) newHosting() (h *hosting, err error) {
	h = &hosting{node: n}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if h.consumer, err = streams.NewConsumer(streams.Config{Brokers: n.cfg.Brokers, Topics: n.cfg.Topics, Log: n.log}); err != nil {
		return nil, err
	}
	if h.producer, err = kafka.NewProducer(n.cfg.Brokers, n.cfg.Topics.WithDefaults().DeadLetters, n.log); err != nil {
		return nil, err
	}
	topics := n.cfg.Topics.WithDefaults()
	if h.schemaLog, err = schemalog.Open(schemalog.Config{Brokers: n.cfg.Brokers, Topic: topics.Schemas, Registry: n.schemas, Log: n.log}); err != nil {
		return nil, err
	}
	n.answers.HeldBy(h.schemaLog.Held)
	if h.progress, err = progress.Open(progress.Config{Brokers: n.cfg.Brokers, Topic: topics.Progress, Log: n.log}); err != nil {
		return nil, err
	}
	return h, h.openKeeper()
}

// openKeeper opens the keeper, which backs partitions up and restores them. It does nothing
// if the configuration names no place for backups.
func (h *hosting) openKeeper() (err error) {
	n := h.node
	if n.cfg.Backup.To == "" {
		return nil
	}
	h.keeper, err = backups.NewKeeper(backups.KeeperConfig{
		Config: n.cfg.Backup, Node: n.cfg.ID, Store: n.store, Dir: filepath.Join(n.cfg.Dir, "backup"), Retention: n.cfg.Store.Retention, Log: n.log,
		Identity: func(ctx context.Context) (backup.Identity, error) { return backups.Identity(ctx, n.cfg.Cluster) },
		Mine:     h.mine, Whole: n.replicas.Whole, Asked: n.askedSince(),
	})
	n.keeper.Store(h.keeper)
	if err == nil && n.cfg.Metrics != nil {
		err = n.cfg.Metrics.Register(h.keeper)
	}
	return err
}

// askedSince returns a function that reports whether a question was answered
// since its last call.
func (n *Node) askedSince() func() bool {
	var last atomic.Pointer[nodev1.QueryRequest]
	return func() bool {
		newest := n.answers.Newest()
		return last.Swap(newest) != newest
	}
}

// mine returns the partitions that this node is to back up.
func (h *hosting) mine() (mine topology.Set) {
	m := h.watcher.Current()
	for p := range partition.All() {
		if id, ok := m.Keeper(p); ok && id == h.node.cfg.ID {
			mine.Add(p)
		}
	}
	return mine
}

func (h *hosting) close() {
	if h.keeper != nil {
		if err := h.keeper.Close(); err != nil {
			h.node.log.Warn("the bucket of the backups was not closed", "err", err)
		}
	}
	if h.progress != nil {
		h.progress.Close()
	}
	if h.schemaLog != nil {
		h.schemaLog.Close()
	}
	if h.producer != nil {
		h.producer.Close()
	}
	if h.consumer != nil {
		h.consumer.Close()
	}
}

// run hosts what the cluster assigns to the node until ctx is done or something fails.
// Brokers reach the node at addr, host:port.
func (h *hosting) run(ctx context.Context, addr string) error {
	n := h.node
	n.addr.Store(addr)
	n.awaits.Store("etcd, to hear of the assignment and the models")
	var err error
	if h.watcher, err = n.cfg.Cluster.Watch(ctx); err != nil {
		return err
	}
	maps := h.watcher.Current
	n.maps.Store(&maps)
	published, err := artefacts.Watch(ctx, n.cfg.Cluster, ModelsKind)
	if err != nil {
		return err
	}
	var models *packs.Follower // a backup node ranks nothing
	var condemned *artefacts.Condemned
	if !n.backsUp() {
		if condemned, err = artefacts.WatchCondemned(ctx, n.cfg.Cluster); err != nil {
			return err
		}
		n.answers.TakeOver(condemned.Current(), published.Before)
		models = n.admission.Follow(published, h.schemaLog)
		models.Admit(ctx)
	}
	if h.member, err = members.Join(ctx, n.cfg.Cluster, topology.Node{ID: n.cfg.ID, Addr: addr, Zone: n.cfg.Zone, Weight: n.cfg.Weight, Dir: n.cfg.Instance, Keeps: n.cfg.Keeps.Ranges()}); err != nil {
		return err
	}
	defer h.leave(ctx)
	n.member.Store(h.member)
	var kept replica.Backups // stays a nil interface, and not one that holds a nil *Keeper
	if h.keeper != nil {
		kept = h.keeper
		h.tidy()
	}
	var warms replica.Warmer // stays a nil interface, likewise
	if !n.backsUp() {
		h.warmer = n.warm.Warmer(h.watcher.Current)
		warms = h.warmer
	}
	n.replicas.Configure(replica.Config{
		Store: n.store, Consumer: h.consumer, Topics: n.cfg.Topics.WithDefaults(), Node: n.cfg.ID, Schemas: n.schemas, SchemaLog: h.schemaLog,
		Letters: h.producer, Input: input{h.progress}, Keeps: h.keeps, Backups: kept, Waited: func(p millrace.Partition) bool { return h.watcher.Current().Below(p) }, Warmer: warms, Host: n.host(), Aged: lookup.Ages(n.cfg.Store.Retention), Limit: n.cfg.LagLimit, Log: n.log,
	})
	n.awaits.Store("")

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.ensureTopics(ctx) })
	g.Go(func() error { return n.replicas.Run(ctx) })
	g.Go(func() error { return h.followAssignment(ctx) })
	g.Go(func() error { return h.followSchemas(ctx) })
	g.Go(func() error { return h.sweep(ctx) })
	g.Go(func() error { return h.count(ctx) })
	g.Go(func() error { return h.announce(ctx) })
	g.Go(func() error { return h.tellStats(ctx) })
	if h.warmer != nil {
		g.Go(func() error { return h.warmer.Run(ctx) })
	}
	if h.keeper != nil {
		g.Go(func() error { return h.keeper.Run(ctx) })
		g.Go(func() error { return h.keeper.RunDrills(ctx) })
	}
	if models != nil {
		g.Go(func() error { return models.Run(ctx, h.member.SetModels) })
		g.Go(func() error { return n.answers.FollowCondemned(ctx, published, condemned) })
	}
	return g.Wait()
}

// ensureTopics creates the topics that are missing, once Kafka is there. If the topics do
// not fit it logs so every minute, and goes on: the node still serves what it has on disk.
// It returns the error of ctx, or nil once the topics fit.
func (h *hosting) ensureTopics(ctx context.Context) error {
	for {
		tell := func(err error) { h.node.log.Warn("waiting for the topics", "err", err) }
		err := kafka.EnsureTopics(ctx, h.node.cfg.Brokers, h.node.cfg.Topics, tell)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		h.node.log.Error("the topics do not fit", "err", err)
		if err := wait.For(ctx, time.Minute); err != nil {
			return err
		}
	}
}

// backupShare is how many times longer the log must keep records than the time within
// which there always is a backup. A restore takes time, and it may have to use an older
// backup than the newest.
const backupShare = 3

// keeps returns why the log may have deleted records that a replica without its disk
// needs, or nil. A log may delete records that are backupShare times as old as the newest
// backup of a partition ever is. It may not be bounded by bytes.
func (h *hosting) keeps(ctx context.Context) error {
	log, err := kafka.InspectTopics(ctx, h.node.cfg.Brokers, h.node.cfg.Topics)
	if err != nil {
		return err
	}
	reach := h.node.cfg.BackupsReach
	if own := h.node.cfg.Backup; reach == 0 && own.To != "" {
		reach = 2 * own.WithDefaults().Every // one backup may fail
	}
	for _, t := range []kafka.LogTopic{log.Timeline, log.Features} {
		if reach > 0 && t.CleanupPolicy == "delete" && t.RetentionBytes < 0 && t.Retention >= backupShare*reach {
			continue
		}
		if what := t.Deletes(); what != "" {
			return fmt.Errorf("%s; keep all of it (retention.ms=-1, retention.bytes=-1, cleanup.policy=delete), or say in backups_reach how old backups are at most, of which it must keep %d times as much", what, backupShare)
		}
	}
	return nil
}

// tidy removes files that restores which broke off have left on the disk.
func (h *hosting) tidy() {
	hosted := h.watcher.Current().Hosted(h.node.cfg.ID)
	if err := h.keeper.Tidy(hosted.Or(h.node.cfg.Keeps)); err != nil {
		h.node.log.Warn("files of restores that broke off are left", "err", err)
	}
}

// leave tells the cluster that the node ends on purpose. It waits for etcd for 2 s at most.
func (h *hosting) leave(ctx context.Context) {
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := h.member.Leave(leave); err != nil {
		h.node.log.Warn("leaving the cluster was not told", "err", err)
	}
}

// followAssignment has the replicas host what the map assigns to the node, and delete what
// it orders, whenever it changes. A backup node hosts what its configuration says.
func (h *hosting) followAssignment(ctx context.Context) error {
	if h.node.backsUp() {
		h.node.replicas.Want(h.node.cfg.Keeps)
		return nil
	}
	for {
		changed := h.watcher.Changed()
		m, fault := h.watcher.Current(), h.watcher.Fault()
		h.node.replicas.Want(m.Hosted(h.node.cfg.ID))
		h.node.replicas.Drop(ordered(m, fault, h.node.cfg.ID))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// ordered returns the partitions that a node is to delete by order of the map. An order
// counts only while fault is nil, so that the map is up to date, and while another replica
// of the partition is ready: a wrong or old map must not delete the last replica.
func ordered(m *topology.Map, fault error, id millrace.NodeID) (drop topology.Set) {
	if fault != nil {
		return drop
	}
	orders := m.Drops(id)
	for p := range orders.All() {
		for _, other := range m.Replicas(p) {
			if ready := m.Ready(other); m.Alive(other) && ready.Has(p) {
				drop.Add(p)
			}
		}
	}
	return drop
}

// announce tells the cluster which partitions answer, which of these have answers that are
// too old, and why others do not answer.
func (h *hosting) announce(ctx context.Context) error {
	tick := time.NewTicker(h.node.cfg.LagLimit / 4)
	defer tick.Stop()
	var told topology.Lag
	leaving := h.node.leaving
	for {
		now := time.Now()
		answering, old, age := h.node.replicas.Answering(now)
		drained := h.node.leavesReport(answering)
		if h.node.backsUp() || len(drained) > 0 {
			answering = topology.Set{} // brokers are not to ask this node
		}
		lag := topology.Lag{Behind: old}
		if old.Len() > 0 {
			lag.Seconds = age.Seconds()
		}
		if worthTelling(told, lag) {
			told = lag
		}
		h.member.SetAnswering(answering, told)
		reports := slices.DeleteFunc(h.node.reports(now), func(r topology.Report) bool {
			return r.State == replica.Ready.String() && r.Reason == ""
		})
		h.member.SetReports(slices.Concat(h.node.pausedReport(now, answering), reports, h.node.typesReport(answering), drained))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-leaving:
			leaving = nil // it is closed: wake up once
		case <-h.node.replicas.Moved():
			select { // gather changes: every process of the cluster reads each message
			case <-ctx.Done():
			case <-leaving:
				leaving = nil
			case <-time.After(gatherFor):
			}
		}
	}
}

// gatherFor is how long after a replica's change the cluster is told, with what changed
// meanwhile.
const gatherFor = 200 * time.Millisecond

// leavesReport returns, if the node is being stopped, a report of the partitions that it
// still answers for brokers that have not heard of that; else nil.
func (n *Node) leavesReport(answering topology.Set) []topology.Report {
	if !n.isLeaving() || answering.Len() == 0 {
		return nil
	}
	return []topology.Report{{
		State: replica.Draining.String(), Reason: string(replica.Leaving), Partitions: answering,
		Detail: "the node is being stopped, and answers until brokers have heard of that",
	}}
}

// worthTelling reports whether a lag differs enough from the one that was told: other
// partitions, or half as many seconds again. Each message has every broker look at the
// map anew.
func worthTelling(told, now topology.Lag) bool {
	return now.Behind != told.Behind || now.Seconds > 1.5*told.Seconds || now.Seconds < told.Seconds/1.5
}

// typesReport returns a warning if records have more content types than can be asked for
// at once; else nil.
func (n *Node) typesReport(answering topology.Set) []topology.Report {
	if _, all := n.store.Types(); all || answering.Len() == 0 {
		return nil
	}
	return []topology.Report{{
		State: replica.Ready.String(), Reason: string(replica.TooManyTypes), Partitions: answering, Warning: true,
		Detail: fmt.Sprintf("records have more than %d content types, and questions for all of them are refused: name types in the feeds' definitions, and stop who writes the others", store.MaxTypes),
	}}
}

// pausedReport returns a warning while an operator has paused the node; else nil. It says
// so even while no record waits: whoever pauses other nodes must not rely on this one for
// fresh answers.
func (n *Node) pausedReport(now time.Time, answering topology.Set) []topology.Report {
	until := n.replicas.Paused(now)
	if until.IsZero() || answering.Len() == 0 {
		return nil
	}
	return []topology.Report{{
		State: replica.Ready.String(), Reason: string(replica.Paused), Partitions: answering, Warning: true,
		Detail: fmt.Sprintf("an operator has paused the node until %s: millrace ingest resume ends that", until.UTC().Format(time.RFC3339)),
	}}
}

// reports returns a report for each state and reason of the partitions that are hosted. It
// includes partitions that are ready without any reason.
func (n *Node) reports(now time.Time) []topology.Report {
	type key struct{ state, reason, said string }
	at := map[key]int{}
	var all []topology.Report
	for p := range partition.All() {
		r := n.replicas.Of(p)
		state := r.State()
		if state == replica.Absent {
			continue
		}
		why, since := r.Why()
		warns := state == replica.Ready && why.Reason == "" && n.cfg.BackupsReach == 0
		if warns {
			why = r.Irreplaceable()
			warns = why.Reason != ""
		}
		k := key{state: state.String(), reason: string(why.Reason)}
		if why.Reason == replica.ByOperator {
			k.said = why.Detail // an operator may give other partitions another reason
		}
		i, ok := at[k]
		if !ok {
			i = len(all)
			at[k] = i
			all = append(all, topology.Report{State: k.state, Reason: k.reason, Detail: why.Detail, Since: since, Warning: warns})
		}
		all[i].Partitions.Add(p)
		if age := n.replicas.Age(p, now); age < replica.UnknownAge {
			all[i].Seconds = max(all[i].Seconds, age.Seconds())
		}
		if since.Before(all[i].Since) {
			all[i].Since = since
		}
	}
	return all
}

// followSchemas empties the cache whenever the schemas change: a schema that is new or
// retired replaces the layout of its family, and the cache holds rows of the old one.
func (h *hosting) followSchemas(ctx context.Context) error {
	n := h.node
	known := n.schemas.Snapshot()
	for {
		moved := h.schemaLog.Moved()
		if now := n.schemas.Snapshot(); now != known {
			known = now
			// A reader that began before may still fill the cache with rows of an
			// old layout: wait until it is done.
			for p := range partition.All() {
				n.replicas.Of(p).Barrier()
			}
			n.cache.Purge()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

// input is what partitioners tell of their progress.
type input struct{ *progress.Log }

// Through implements replica.Input. Until the topic progress has been read once it is 1 ms
// after 1970: nothing that came in counts as partitioned into the log.
func (i input) Through() (time.Time, bool) {
	if !i.Read() {
		return time.UnixMilli(1), true
	}
	return i.Log.Through()
}

// host is a node as its replicas see it. The Lookup keeps the caches equal to the store,
// and counters count what was applied and refused.
type host struct {
	*lookup.Lookup
	counters *counters
}

func (n *Node) host() replica.Host { return host{n.lookup, &n.counters} }

// Applied implements replica.Host.
func (h host) Applied(s kafka.Stream, changes []store.Change, records int) {
	h.counters.applied(s, changes, records)
}

// Refused implements replica.Host.
func (h host) Refused(reason schemas.Reason) { h.counters.refused(reason) }
