package clitest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
)

// Stage is a cluster that has a real etcd and no processes of nodes: a test says what
// its nodes answer.
type Stage struct {
	*testing.T
	Name    string // of the cluster
	Models  *artefacts.Kind
	Feeds   *artefacts.Kind
	Failed  *artefacts.Condemned // versions of models that must not serve
	Client  *cluster.Client
	Etcd    []string                                // the address of etcd
	Stop    func()                                  // ends etcd
	Members map[millrace.NodeID]*members.Membership // the registration of each node
	Dir     string                                  // the data directory of etcd
}

// NewStage starts a cluster of the name "test" with these nodes. It ends with the test.
func NewStage(t *testing.T, nodes ...millrace.NodeID) *Stage {
	t.Helper()
	return NewStageOf(t, "test", nodes...)
}

// NewStageOf is NewStage of a cluster of another name.
func NewStageOf(t *testing.T, name string, nodes ...millrace.NodeID) *Stage {
	t.Helper()
	s := &Stage{T: t, Name: name, Members: map[millrace.NodeID]*members.Membership{}}
	s.Dir = t.TempDir()
	etcd, err := minicluster.StartEtcd(t.Context(), s.Dir, "127.0.0.1:0")
	s.Check(err)
	s.Stop = sync.OnceFunc(etcd.Close)
	t.Cleanup(s.Stop)
	s.Etcd = []string{etcd.Addr()}
	s.Client, err = cluster.Open(t.Context(), cluster.Config{Endpoints: []string{etcd.Addr()}, Name: name, Log: slog.New(slog.DiscardHandler)})
	s.Check(err)
	t.Cleanup(func() { _ = s.Client.Close() })
	a, err := topology.Spread(nodes, 2)
	a.AllowUnknown = true // the nodes register only below
	s.Check(err)
	s.Check(steering.Assign(t.Context(), s.Client, a))
	for _, id := range nodes {
		s.Members[id], err = members.Join(t.Context(), s.Client, topology.Node{ID: id, Addr: "none:1"})
		s.Check(err)
	}
	_, err = s.Client.Watch(t.Context()) // as nodes do, so that the client remembers the assignment
	s.Check(err)
	s.Models, err = artefacts.Watch(t.Context(), s.Client, indexnode.ModelsKind)
	s.Check(err)
	s.Feeds, err = artefacts.Watch(t.Context(), s.Client, feeds.Kind)
	s.Check(err)
	s.Failed, err = artefacts.WatchCondemned(t.Context(), s.Client)
	s.Check(err)
	return s
}

// Check ends the test if err is not nil.
func (s *Stage) Check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Bare deletes the bytes of all versions of an artefact from etcd. Its document, which
// names the versions, stays.
func (s *Stage) Bare(kind, name string) {
	s.Helper()
	etcdtest.Lose(s.T, s.Etcd[0], "/millrace/"+s.Name+"/bodies/"+kind+"/"+name+"/")
}

// Gone deletes the document of an artefact from etcd, as somebody may do without the
// commands.
func (s *Stage) Gone(kind, name string) {
	s.Helper()
	etcdtest.Lose(s.T, s.Etcd[0], "/millrace/"+s.Name+"/docs/"+kind+"/"+name)
}

// Answer makes a node tell for every version of every model whether it admits that version,
// as soon as the version is in etcd, until the test ends or stop has returned. refuse
// returns why the node does not admit the version; "": it admits it.
func (s *Stage) Answer(id millrace.NodeID, refuse func(v artefacts.Version) string) (stop func()) {
	return s.AnswerAs(id, func(v artefacts.Version) members.Admission { return members.Admission{Refused: refuse(v)} })
}

// AnswerAs is [Stage.Answer] where of returns all that a node tells of a version.
func (s *Stage) AnswerAs(id millrace.NodeID, of func(v artefacts.Version) members.Admission) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			changed := s.Models.Changed()
			var all []members.Admission
			for _, versions := range s.Models.All() {
				for _, v := range versions {
					a := of(v)
					a.Name, a.Version, a.Sum = v.Name, v.Version, v.Sum
					all = append(all, a)
				}
			}
			s.Members[id].SetModels(all)
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}()
	stop = func() { cancel(); <-done }
	s.Cleanup(stop)
	return stop
}

// Broker registers a broker that hears of every change until stop is called. After that
// it hears nothing and stays registered, like a broker that has lost etcd.
func (s *Stage) Broker(name string) (stop func()) {
	s.Helper()
	cl, err := cluster.Open(s.Context(), cluster.Config{Endpoints: s.Etcd, Name: s.Name, Log: slog.New(slog.DiscardHandler)})
	s.Check(err)
	watch := func(kind string) *artefacts.Kind {
		a, err := artefacts.Watch(s.Context(), cl, kind)
		s.Check(err)
		return a
	}
	failed, err := artefacts.WatchCondemned(s.Context(), cl)
	s.Check(err)
	pages, err := secrets.Watch(s.Context(), cl, pagetoken.Secret)
	s.Check(err)
	brokers.Announce(cl, brokers.Broker{Name: name, Addr: name + ":9090", Admin: name + ":6060", Version: "v1"}, "",
		watch(feeds.Kind), watch(experiments.Kind), watch(indexnode.ModelsKind), failed, pages, brokers.WatchTraced(s.Context(), cl))
	WaitFor(s.Context(), s.T, name+" to be registered", func() bool {
		all, err := brokers.Heard(s.Context(), cl, nil)
		return err == nil && slices.ContainsFunc(all, func(b brokers.Hearer) bool { return b.Name == name })
	})
	stop = sync.OnceFunc(func() { _ = cl.Close() })
	s.Cleanup(stop)
	return stop
}

// Admits is for [Stage.Answer]: it refuses no version.
func Admits(artefacts.Version) string { return "" }

// RatePack makes a model pack, the files of one version of a model, for the model rate,
// which has one feature. It returns the directory of the pack.
func (s *Stage) RatePack(version, feature string) string {
	s.Helper()
	dir := s.TempDir()
	for name, text := range map[string]string{
		modelpack.SpecFile:   fmt.Sprintf("name: rate\nversion: %q\nschemas: [millrace.Activity]\nfeatures: {%s: record.likes}\nscorer: linear\nparameters: {weights: {%s: 2}}\n", version, feature, feature),
		modelpack.GoldenFile: fmt.Sprintf(`{"features":{"%s":1},"score":2,"record":{"likes":1}}`, feature),
		modelpack.CardFile:   "Rate.\n",
	} {
		s.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	_, err := modelpack.Seal(dir, relevance.ShippedSchemas())
	s.Check(err)
	return dir
}

// NewsAt stores versions of the feed news without the commands, so that no node needs to
// answer for them. The last one serves.
func (s *Stage) NewsAt(bodies ...string) {
	s.Helper()
	feeds, err := artefacts.Watch(s.Context(), s.Client, feeds.Kind)
	s.Check(err)
	for _, body := range bodies {
		v, _, err := feeds.Publish(s.Context(), "news", "", []byte("name: news\n"+body), "somebody")
		s.Check(err)
		s.Check(feeds.Serve(s.Context(), v, nil, "somebody"))
	}
}

// File writes a file with this text, and returns its path.
func (s *Stage) File(name, text string) string {
	s.Helper()
	path := filepath.Join(s.TempDir(), name)
	s.Check(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Fresher is an experiment document with one experiment, fresher, in state draft.
const Fresher = `# the ranking team's
layers:
  - {name: ranking, salt: ranking-2026, unit: viewer}
experiments:
  - name: fresher
    layer: ranking
    feeds: [home]
    state: draft   # until Monday
    slots: [0-3999]
    share: 0
    variants:
      - {name: control, weight: 5000}
      - {name: treatment, weight: 5000, set: {limit: 30}}
`
