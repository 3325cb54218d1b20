package rollouts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/experiments"
	"github.com/millrace/millrace/cmd/cli/models"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
)

// rolling is a stage, and what commands of models see of it.
type rolling struct {
	*clitest.Stage
	*rollout
	out bytes.Buffer
}

func newRolling(t *testing.T, nodes ...millrace.NodeID) *rolling {
	t.Helper()
	s := &rolling{Stage: clitest.NewStage(t, nodes...)}
	var err error
	s.rollout, err = openRollout(t.Context(), s.Client, &s.out)
	s.Check(err)
	return s
}

// run runs a command of models, feeds or experiments on the stage.
func (s *rolling) run(args ...string) (string, error) {
	var out strings.Builder
	model := &cobra.Command{Use: "model"}
	model.AddCommand(Models(new([]string))...)
	feed := &cobra.Command{Use: "feed"}
	feed.AddCommand(Feeds()...)
	c := &cobra.Command{Use: "millrace"}
	c.AddCommand(model, feed, experiments.Command())
	command.Prepare(c)
	c.SetArgs(append(args, "--etcd", s.Etcd[0], "--cluster", "test"))
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(s.Context())
	return out.String(), err
}

// isMeant is --apply --yes.
func isMeant() (bool, error) { return true, nil }

// pushed pushes a version of the model likes, and returns what was printed.
func (s *rolling) pushed(version, weight string, p push) (string, error) {
	s.Helper()
	p.timeout = max(p.timeout, time.Minute) // a limit for what must not hang
	return s.pushedWithin(version, weight, p)
}

func (s *rolling) pushedWithin(version, weight string, p push) (string, error) {
	s.Helper()
	pack := s.likes(version, weight)
	s.out.Reset()
	err := s.push(s.Context(), pack, p)
	return s.out.String(), err
}

// likes is a pack of the model likes.
func (s *rolling) likes(version, weight string) *modelpack.Pack {
	s.Helper()
	dir := s.TempDir()
	for name, text := range map[string]string{
		modelpack.SpecFile:   fmt.Sprintf("name: likes\nversion: %q\nschemas: [millrace.Activity]\nfeatures: {likes: record.likes}\nscorer: linear\nparameters: {weights: {likes: %s}}\n", version, weight),
		modelpack.GoldenFile: fmt.Sprintf(`{"features":{"likes":1},"score":%s,"record":{"likes":1}}`, weight),
		modelpack.CardFile:   "Likes.\n",
	} {
		s.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	_, err := modelpack.Seal(dir, relevance.ShippedSchemas())
	s.Check(err)
	pack, err := packToPush(dir, nil)
	s.Check(err)
	return pack
}

// Room for a version is made of the oldest that ranked nothing within a day. Where
// all did, the oldest goes all the same, and the push says what that does.
func TestRoomIsMadeOfWhatRanksNoPages(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "node-1")
	publish := func(version int, serve bool) string {
		s.out.Reset()
		v, err := s.publish(s.Context(), s.likes(strconv.Itoa(version), "2"))
		s.Check(err)
		if serve {
			s.Check(s.Serving.Models.Serve(s.Context(), v, nil, "ann"))
		}
		return s.out.String()
	}
	for i := 1; i <= 32; i++ {
		if said := publish(i, i != 3); strings.Contains(said, "dropped") {
			t.Fatalf("version %d: %s", i, said)
		}
	}
	if said := publish(33, true); !strings.HasSuffix(said, "likes 3 is dropped to make room\n") {
		t.Errorf("version 33: %s", said)
	}
	if said := publish(34, true); !strings.Contains(said, "likes 1 is dropped to make room: all that are kept ranked within a day") {
		t.Errorf("version 34: %s", said)
	}
}

// pushedOnceHeard pushes a version again once these nodes have answered it: a
// push that has little time then prints their answers, on a busy machine too.
func (s *rolling) pushedOnceHeard(version, weight string, nodes ...millrace.NodeID) (string, error) {
	s.Helper()
	little := push{timeout: 200 * time.Millisecond}
	_, _ = s.pushedWithin(version, weight, little)
	heard := func(a nodeAnswer) bool { return a.State != stateUnheard || !slices.Contains(nodes, a.Node) }
	for end := time.After(time.Minute); ; {
		changed := s.heard.Changed()
		v, err := s.version("likes", version)
		s.Check(err)
		if all := s.answers(v); len(all) > 0 && !slices.ContainsFunc(all, func(a nodeAnswer) bool { return !heard(a) }) {
			return s.pushedWithin(version, weight, little)
		}
		select {
		case <-changed:
		case <-end:
			s.Fatalf("%v have not answered version %s", nodes, version)
		}
	}
}

func (s *rolling) serves(version string) {
	s.Helper()
	if v, _ := s.Serving.Models.Served("likes"); v.Version != version {
		s.Errorf("version %q serves, want %q", v.Version, version)
	}
}

// TestPushReportsEachNode: a push waits for every assigned node, prints what
// each answered, and moves the pointer only when all have admitted the pack.
func TestPushReportsEachNode(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1", "n2", "n3")
	s.Answer("n1", clitest.Admits)
	s.Answer("n3", clitest.Admits)
	s.Answer("n2", func(v artefacts.Version) string {
		if v.Version == "2" {
			return "no schema team.Talk"
		}
		return ""
	})
	out, err := s.pushed("1", "1", push{})
	if err != nil || !strings.Contains(out, "likes 1 serves") || strings.Count(out, "admitted") != 3 {
		t.Fatalf("%v:\n%s", err, out)
	}
	s.serves("1")

	out, err = s.pushedOnceHeard("2", "2", "n1", "n2", "n3")
	if err == nil || !strings.Contains(err.Error(), "1 refused") || !strings.Contains(err.Error(), "likes 1 serves on") {
		t.Errorf("refused by one: %v", err)
	}
	if !strings.Contains(out, "n2  refused: no schema team.Talk") || !strings.Contains(out, "n1  admitted") {
		t.Errorf("printed\n%s", out)
	}
	s.serves("1")

	s.out.Reset()
	s.Check(s.list(t.Context(), new(display.Form)))
	if out := s.out.String(); !strings.Contains(out, "3 of 3") || !strings.Contains(out, "2 of 3") || !strings.Contains(out, "likes 2: n2 refused: no schema team.Talk") {
		t.Errorf("list says\n%s", out)
	}
}

// TestPushOfADearVersion: a version that costs far more than the one that serves,
// as nodes reckon it, serves only if asked.
func TestPushOfADearVersion(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1", "n2")
	s.Answer("n1", clitest.Admits) // as older nodes, which do not tell
	s.AnswerAs("n2", func(v artefacts.Version) members.Admission {
		return members.Admission{Cost: map[string]int{"1": 200, "2": 10_000, "3": 10_001}[v.Version]}
	})
	for _, c := range []struct {
		version, serves, says string
	}{
		{"1", "1", "likes 1 serves"},
		{"3", "1", "does not serve: a record costs 10001 operations, more than 50 times the 200 of the version that serves; add --serve"},
		{"2", "2", "likes 2 serves"},
		{"3", "3", "likes 3 serves"},
	} {
		out, err := s.pushed(c.version, c.version, push{})
		if held := c.serves != c.version; errors.Is(err, errHeld) != held || !held && err != nil || !strings.Contains(fmt.Sprint(out, err), c.says) {
			t.Errorf("version %s: %v:\n%s", c.version, err, out)
		}
		s.serves(c.serves)
	}
	if out, err := s.pushed("4", "1", push{}); err != nil || !strings.Contains(out, "likes 4 serves") {
		t.Errorf("a version whose cost nobody tells: %v:\n%s", err, out)
	}
}

// TestPushToASilentNode: a node that is not heard fails the push by name.
func TestPushToASilentNode(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1", "n2")
	s.Answer("n1", clitest.Admits)
	out, err := s.pushedOnceHeard("1", "1", "n1")
	if err == nil || !strings.Contains(err.Error(), "1 were not heard") || !strings.Contains(out, "n2  not heard") {
		t.Fatalf("%v:\n%s", err, out)
	}
	s.serves("")
}

// A push while a node is away says what serves, and what to do about the node.
func TestPushWhileANodeIsAway(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1", "n2")
	s.Answer("n1", clitest.Admits)
	s.Answer("n2", clitest.Admits)
	_, err := s.pushed("1", "1", push{})
	s.Check(err)
	s.Check(s.Members["n2"].Leave(t.Context()))
	for { // until it is heard no more
		changed, moved := s.heard.Changed(), s.maps.Changed()
		if _, heard := s.heard.Current()["n2"]; !heard && !s.maps.Current().Alive("n2") {
			break
		}
		select {
		case <-changed:
		case <-moved:
		}
	}
	const way = `away: n2. A push waits for every node that has partitions: start it, move its partitions with millrace node drain, or give it up with millrace node remove`
	little := push{timeout: 200 * time.Millisecond}
	if out, err := s.pushedWithin("1", "1", little); err == nil || !strings.Contains(err.Error(), "likes 1 serves already: of 2") || strings.Contains(err.Error(), "does not serve") || !strings.Contains(err.Error(), way) {
		t.Errorf("the same again: %v:\n%s", err, out)
	}
	if _, err := s.pushedWithin("2", "2", little); err == nil || !strings.Contains(err.Error(), "likes 2 is published and does not serve") || !strings.Contains(err.Error(), way) || !strings.HasSuffix(err.Error(), "likes 1 serves on") {
		t.Errorf("another: %v", err)
	}
	s.serves("1")
}

// TestPushAgainOnceHeard: a push that was not heard everywhere says what to run,
// and the same push serves once the last node has admitted the pack.
func TestPushAgainOnceHeard(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1", "n2")
	s.Answer("n1", clitest.Admits)
	if _, err := s.pushedOnceHeard("1", "1", "n1"); err == nil || !strings.Contains(err.Error(), "once millrace model list says that all have admitted it, now 1 of 2, run the same millrace model push again") {
		t.Errorf("not heard: %v", err)
	}
	s.Answer("n2", clitest.Admits)
	if out, err := s.pushed("1", "1", push{}); err != nil || !strings.Contains(out, "likes 1 serves") {
		t.Errorf("again: %v:\n%s", err, out)
	}
	if err := s.rollout.rollback(t.Context(), "likes", false, isMeant); err == nil || !strings.Contains(err.Error(), "millrace model push --serve FILE") {
		t.Errorf("a rollback too many: %v", err)
	}
}

// TestPushOfAPackWhoseSchemasTheClusterKnows: push needs no schema files, and
// seal tells the checksum by which the pack is published.
func TestPushOfAPackWhoseSchemasTheClusterKnows(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "talk.avsc")
	for path, text := range map[string]string{
		file:                                     `{"type":"record","name":"team.Talk","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"claps","type":"long","default":0}]}`,
		filepath.Join(dir, modelpack.SpecFile):   "name: claps\nversion: \"1\"\nschemas: [team.Talk]\nfeatures: {claps: record.claps}\nscorer: linear\nparameters: {weights: {claps: 1}}\n",
		filepath.Join(dir, modelpack.GoldenFile): `{"features":{"claps":2},"score":2,"record":{"claps":2}}`,
		filepath.Join(dir, modelpack.CardFile):   "Claps.\n",
	} {
		s.Check(os.WriteFile(path, []byte(text), 0o644))
	}
	var told bytes.Buffer
	s.Check(models.Seal(&told, dir, []string{file}))
	pack, err := packToPush(dir, nil)
	s.Check(err)
	s.Check(s.push(t.Context(), pack, push{timeout: time.Minute}))
	v, _ := s.Serving.Models.Served("claps")
	if v.Version != "1" || !strings.Contains(told.String(), v.Sum[:12]) {
		t.Errorf("serves %+v; seal said %s", v, told.String())
	}
}

// TestPushOfABuiltInName: a pack that has the name of a model that is built in, as
// when its manifest was written by hand, is refused before anything is published.
func TestPushOfABuiltInName(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	for _, name := range []string{"recency", "home"} {
		dir := s.RatePack("9", "likes")
		pack, err := modelpack.Open(dir)
		s.Check(err)
		spec, err := os.ReadFile(filepath.Join(dir, modelpack.SpecFile))
		s.Check(err)
		spec = bytes.Replace(spec, []byte("name: rate"), []byte("name: "+name), 1)
		pack.Manifest.Name, pack.Manifest.Files[modelpack.SpecFile] = name, fmt.Sprintf("%x", sha256.Sum256(spec))
		manifest, err := json.Marshal(pack.Manifest)
		s.Check(err)
		s.Check(os.WriteFile(filepath.Join(dir, modelpack.SpecFile), spec, 0o644))
		s.Check(os.WriteFile(filepath.Join(dir, modelpack.ManifestFile), manifest, 0o644))
		_, err = s.run("model", "push", dir)
		e, ok := errors.AsType[*millrace.Error](err)
		if !ok || e.Field != "name" || e.Detail != name+" is built in" || e.WayOut != "give the model another name, in its spec" || len(s.Serving.Models.Names()) > 0 {
			t.Errorf("%s: %v; there are %v", name, err, s.Serving.Models.Names())
		}
	}
}

// TestPushOfVersions: a version that is not newer is published and serves only if asked,
// the same pack again is no change, other bytes under the same version are
// refused, and a rollback goes back.
func TestPushOfVersions(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1", "n2")
	s.Answer("n1", clitest.Admits)
	s.Answer("n2", clitest.Admits)
	for _, c := range []struct {
		version, weight string
		push            push
		says, serves    string
		refused         error
	}{
		{"2", "2", push{}, "likes 2 serves", "2", nil},
		{"2", "2", push{}, "already, with the same content", "2", nil},
		{"2", "3", push{}, "", "2", artefacts.ErrOtherBytes},
		{"1", "1", push{}, "", "2", errHeld},
		{"1", "1", push{serve: true}, "likes 1 serves", "1", nil},
		{"10", "10", push{only: true}, "does not serve", "1", nil},
		{"10", "10", push{}, "likes 10 serves", "10", nil},
		{"10-rc1", "11", push{}, "", "10", errHeld}, // which is before it,
		{"010", "12", push{}, "", "10", errHeld},    // and which of these is newer nobody knows
	} {
		out, err := s.pushed(c.version, c.weight, c.push)
		if !errors.Is(err, c.refused) || !strings.Contains(out, c.says) {
			t.Errorf("version %s, %+v: %v:\n%s", c.version, c.push, err, out)
		}
		s.serves(c.serves)
	}
	for _, want := range []string{"1", "2"} {
		s.Check(s.rollout.rollback(t.Context(), "likes", false, isMeant))
		s.serves(want)
	}
	if err := s.rollback(t.Context(), "likes", false, isMeant); !errors.Is(err, artefacts.ErrNoVersion) {
		t.Errorf("a rollback too many: %v", err)
	}
	s.out.Reset()
	s.Check(s.history(t.Context(), new(display.Form), "likes"))
	if out := s.out.String(); strings.Count(out, "put") != 5 || strings.Count(out, "serve") != 3 || strings.Count(out, "rollback") != 2 {
		t.Errorf("history says\n%s", out)
	}
	file := filepath.Join(t.TempDir(), "likes.tar.zst")
	s.Check(s.pull(t.Context(), []string{"likes", "10"}, file))
	if p, err := modelpack.Open(file); err != nil || p.Manifest.Version != "10" {
		t.Errorf("pulled %v, %v", p, err)
	}
}

// TestDropOfWhatAFeedNames: a model that a feed names keeps a version, and is
// refused by the feed's name.
func TestDropOfWhatAFeedNames(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	for _, version := range []string{"1", "2"} {
		_, err := s.pushed(version, version, push{})
		s.Check(err)
	}
	store, err := artefacts.Watch(t.Context(), s.Client, feeds.Kind)
	s.Check(err)
	likely, err := feeds.Define(t.Context(), store, feeds.Checks{Models: []string{"home", "likes"}}, []byte("name: likely\nmodel: home\nshadow: [likes]\n"), "somebody")
	s.Check(err)
	for changed := s.Serving.Feeds.Versions.Changed(); len(s.Serving.Feeds.Versions.Serving()) == 0; changed = s.Serving.Feeds.Versions.Changed() {
		<-changed
	}
	if err := s.drop(t.Context(), "likes", "2", true, isMeant); !errors.Is(err, artefacts.ErrInUse) || !strings.Contains(err.Error(), "feed likely") {
		t.Errorf("the version that serves: %v", err)
	}
	s.Check(s.drop(t.Context(), "likes", "1", true, isMeant))
	if err := s.drop(t.Context(), "likes", "2", true, isMeant); !errors.Is(err, artefacts.ErrInUse) || !strings.Contains(err.Error(), "feed likely") {
		t.Errorf("the last version: %v", err)
	}
	s.Check(store.Drop(t.Context(), likely.Version, nil, "somebody"))
	for changed := s.Serving.Feeds.Versions.Changed(); len(s.Serving.Feeds.Versions.Serving()) > 0; changed = s.Serving.Feeds.Versions.Changed() {
		<-changed
	}
	s.Check(s.drop(t.Context(), "likes", "2", true, isMeant))
	s.serves("")
	if err := s.drop(t.Context(), "likes", "2", true, isMeant); err == nil {
		t.Error("dropped twice")
	}
}

// TestLastRanked: a version ranks while it serves and, if it served before, while
// what serves is condemned.
func TestLastRanked(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Unix(int64(60*minute), 0) }
	for _, c := range []struct {
		history string // an event a minute: what happens to which version
		want    map[string]int
	}{
		{"put 1, put 2", map[string]int{}},
		{"serve 1", map[string]int{"1": 9}},
		{"serve 1, serve 2, put 3", map[string]int{"1": 1, "2": 9}},
		{"serve 1, serve 2, rollback 1", map[string]int{"1": 9, "2": 2}},
		{"serve 1, serve 2, condemn 2", map[string]int{"1": 9, "2": 2}},
		{"serve 1, serve 2, condemn 2, put 3, serve 3", map[string]int{"1": 4, "2": 2, "3": 9}},
		{"serve 1, serve 2, condemn 2, release 2", map[string]int{"1": 3, "2": 9}},
		{"serve 1, serve 2, condemn 1, release 1", map[string]int{"1": 1, "2": 9}}, // which serves no more
		{"serve 1, drop 1, put 1", map[string]int{"1": 1}},
		{"serve 1, serve 2, drop 1, put 1, condemn 2", map[string]int{"1": 1, "2": 4}},
	} {
		var events []ledger.Event
		for i, event := range strings.Split(c.history, ", ") {
			what, version, _ := strings.Cut(event, " ")
			events = append(events, ledger.Event{What: ledger.Change(what), Version: version, Sum: "sum" + version, When: at(i)})
		}
		for _, version := range []string{"1", "2", "3"} {
			want := time.Time{}
			if minute, ok := c.want[version]; ok {
				want = at(minute)
			}
			if got := lastRanked(events, artefacts.Version{Name: "m", Version: version, Sum: "sum" + version}, at(9)); !got.Equal(want) {
				t.Errorf("%s: version %s ranked last at %v, want %v", c.history, version, got, want)
			}
		}
	}
}

// TestDropOfWhatPagesAreRankedBy: a version stays while a page token may name it,
// which is a day after it served last, unless the cluster's name is said.
func TestDropOfWhatPagesAreRankedBy(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	for _, p := range []struct {
		version string
		only    bool
	}{{"1", false}, {"2", false}, {"3", true}} {
		_, err := s.pushed(p.version, p.version, push{only: p.only})
		s.Check(err)
	}
	drop := func(version string, more ...string) error {
		_, err := s.run(append([]string{"model", "drop", "likes", version, "--apply", "--yes"}, more...)...)
		return err
	}
	refused := func(version string) {
		t.Helper()
		events, err := s.Serving.Models.History(t.Context(), "likes")
		s.Check(err)
		until := time.Now() // it serves
		if version == "1" {
			i := slices.IndexFunc(events, func(e ledger.Event) bool { return e.What == ledger.Served && e.Version == "2" })
			until = events[i].When
		}
		err = drop(version)
		e, ok := errors.AsType[*millrace.Error](err)
		if !ok || !strings.Contains(e.Detail, "likes "+version+" may be in use by pages: who began while it ranked may ask for more until "+until.Add(24*time.Hour).UTC().Format("2006-01-02 15:")) || !strings.Contains(e.Detail, "whether anybody did is written down nowhere") || !strings.Contains(e.WayOut, "say --override test, the name of this cluster") {
			t.Errorf("version %s: %v", version, err)
		}
	}
	refused("1")
	if err := drop("1", "--override", "another"); err == nil || !strings.Contains(err.Error(), "is not the name of this cluster") {
		t.Errorf("of another cluster: %v", err)
	}
	s.Check(drop("3")) // it never served
	s.Check(drop("1", "--override", "test"))
	refused("2") // the last one, which no feed names by now
	s.Check(drop("2", "--override", "test"))
}

// A version that a node died of is released as one that is condemned is, and only
// while a node says so.
func TestReleaseWhatANodeDiedOf(t *testing.T) {
	s := newRolling(t, "n1", "n2")
	stop := s.Answer("n1", clitest.Admits)
	s.Answer("n2", clitest.Admits)
	if out, err := s.pushed("1", "1", push{}); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	v, _ := s.Serving.Models.Served("likes")
	if err := s.release(t.Context(), "likes", "1"); err == nil || !strings.Contains(err.Error(), "no index node died of it") {
		t.Errorf("released for nothing: %v", err)
	}
	stop() // or an answer of before would come after this one
	s.Members["n1"].SetModels([]members.Admission{{Name: v.Name, Version: v.Version, Sum: v.Sum, Refused: "n1 died 2 times", Deadly: true}})
	for len(s.diedOf(v)) == 0 {
		changed := s.heard.Changed()
		if len(s.diedOf(v)) == 0 {
			<-changed
		}
	}
	s.out.Reset()
	s.Check(s.release(t.Context(), "likes", "1"))
	if out := s.out.String(); out != "n1 tries again to admit likes 1, once: it died of that before\n" {
		t.Errorf("released\n%s", out)
	}
	events, err := s.Serving.Models.History(t.Context(), "likes")
	if s.Check(err); events[len(events)-1].What != ledger.Released || events[len(events)-1].Sum != v.Sum {
		t.Errorf("the node is told %+v", events)
	}
}

// TestCondemnedVersions: list says which version is condemned, why, and what
// ranks in its place; it is asked for again when it is released, and when it is
// pushed again.
func TestCondemnedVersions(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1", "n2")
	for id := range s.Members {
		s.Answer(id, clitest.Admits)
	}
	for _, version := range []string{"1", "2"} {
		if out, err := s.pushed(version, version, push{}); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
	}
	bad, _ := s.Serving.Models.Served("likes")
	condemn := func() {
		t.Helper()
		s.Check(s.Serving.Failed.Condemn(t.Context(), s.Serving.Models, bad, "it panicked on n1: a broken table", "n1", time.Now()))
	}
	listed := func() string {
		t.Helper()
		s.out.Reset()
		s.Check(s.list(t.Context(), new(display.Form)))
		return s.out.String()
	}
	condemn()
	if out := listed(); !strings.Contains(out, "serves, condemned") || !strings.Contains(out, "it panicked on n1: a broken table; likes 1 ranks in its place") {
		t.Errorf("listed\n%s", out)
	}
	if out := listed(); strings.Contains(out, "drafts") {
		t.Errorf("of drafts that there are none of, listed\n%s", out)
	}
	file := filepath.Join(t.TempDir(), "drafted.yaml")
	s.Check(os.WriteFile(file, []byte("layers: [{name: l, salt: s, unit: viewer}]\nexperiments: [{name: drafted, layer: l, feeds: [home], state: draft, slots: [0-99], share: 0, variants: [{name: control, weight: 5000}, {name: both, weight: 5000, set: {interleave: [home, likes]}}]}]\n"), 0o644))
	_, err := s.run("experiment", "define", file)
	s.Check(err)
	if out := listed(); !strings.Contains(out, "; nothing drafts in its place in experiment drafted, whose pages are the first model's alone") {
		t.Errorf("of drafts, listed\n%s", out)
	}
	s.out.Reset()
	s.Check(s.release(t.Context(), "likes", "2"))
	if out := s.out.String(); !strings.Contains(out, "likes 2 is asked for again; it was condemned: it panicked") || strings.Contains(listed(), "condemned") {
		t.Errorf("released\n%s", out)
	}
	s.out.Reset()
	s.Check(s.history(t.Context(), new(display.Form), "likes"))
	if out := s.out.String(); strings.Count(out, "release") != 1 || !strings.Contains(out[strings.Index(out, "release"):], clusters.Who()+": it was condemned: it panicked on n1: a broken table") ||
		strings.Count(out, "condemn  ") != 1 || !strings.Contains(out[strings.Index(out, "condemn  "):], "n1: it panicked on n1: a broken table") {
		t.Errorf("history says\n%s", out)
	}
	if err := s.release(t.Context(), "likes", "2"); err == nil || !strings.Contains(err.Error(), "not condemned") {
		t.Errorf("released twice: %v", err)
	}
	condemn()
	if out, err := s.pushed("2", "2", push{}); err != nil || !strings.Contains(out, "likes 2 is asked for again") || s.Serving.Failed.Why(bad) != "" {
		t.Errorf("pushed again: %v\n%s", err, out)
	}
	condemn()
	good := s.Serving.Models.Before("likes")[0]
	err = s.drop(t.Context(), "likes", "1", true, func() (bool, error) {
		t.Error("the version that ranks in its place would be dropped")
		return false, nil
	})
	if e := (*millrace.Error)(nil); !errors.As(err, &e) || !strings.Contains(e.Detail, "likes 1 ranks in the place of likes 2") || !strings.Contains(e.WayOut, "release") {
		t.Errorf("the version that ranks in its place: %v", err)
	}
	s.Check(s.Serving.Failed.Condemn(t.Context(), s.Serving.Models, good, "it is as bad", "n2", time.Now()))
	if out := listed(); !strings.Contains(out, "; recency ranks in its place") {
		t.Errorf("listed\n%s", out)
	}
}

// Room for further versions is not made of the one that ranks.
func TestTheVersionThatRanksIsSpared(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	for _, version := range []string{"1", "2", "3"} {
		_, err := s.pushed(version, version, push{})
		s.Check(err)
	}
	for _, v := range s.Serving.Models.All()["likes"] {
		if v.Version != "1" {
			s.Check(s.Serving.Failed.Condemn(t.Context(), s.Serving.Models, v, "it panicked", "n1", time.Now()))
		}
	}
	for i := range 31 { // 32 are kept
		version := strconv.Itoa(4 + i)
		_, _, err := s.Serving.Models.Publish(t.Context(), "likes", version, []byte(version), "somebody")
		s.Check(err)
	}
	var there []string
	for _, v := range s.Serving.Models.All()["likes"][:4] {
		there = append(there, v.Version)
	}
	if !slices.Equal(there, []string{"1", "2", "3", "6"}) {
		t.Errorf("the oldest there are %v", there)
	}
}

// TestPushTellsWhatRecordsLack: of each content type, the fields in which no node
// has found anything, and the feeds that show it and name the model.
func TestPushTellsWhatRecordsLack(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1", "n2")
	lacks := map[millrace.NodeID][]members.Lack{
		"n1": {{Type: "post", Records: 10, Fields: []string{"likes", "shares"}}, {Type: "like", Records: 3}},
		"n2": {{Type: "post", Records: 5, Fields: []string{"likes"}}},
	}
	for id := range s.Members {
		s.AnswerAs(id, func(artefacts.Version) members.Admission { return members.Admission{Lacks: lacks[id]} })
	}
	s.NewsAt("model: likes\ntypes: [post]\n")
	s.Check(s.Serving.Feeds.Versions.Settle(t.Context())) // whose watcher is another
	out, err := s.pushed("1", "1", push{})
	if err != nil || !strings.Contains(out, "note: no post (feed news) of 15 that index nodes looked at has anything in record.likes\n") || strings.Contains(out, "shares") || strings.Count(out, "note:") != 1 {
		t.Errorf("%v:\n%s", err, out)
	}
}

// A version that somebody drops while a push of it waits is not waited for.
func TestAPushNoticesThatItsVersionIsDropped(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	go func() {
		for {
			changed := s.Serving.Models.Changed()
			if v, err := s.version("likes", "1"); err == nil {
				_ = s.Serving.Models.Drop(context.WithoutCancel(t.Context()), v, nil, "bob")
				return
			}
			<-changed
		}
	}()
	_, err := s.pushed("1", "1", push{timeout: 10 * time.Minute})
	if err == nil || !strings.Contains(err.Error(), "likes 1 was dropped while this waited") {
		t.Error(err)
	}
}

// An experiment that somebody starts after a push has looked for such keeps the version
// from serving, unless it is meant to.
func TestAPushMeetsAnExperimentThatBegins(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	_, err := s.pushed("1", "1", push{})
	s.Check(err)
	before, _ := s.Serving.Models.Served("likes")
	if _, err := s.pushed("2", "2", push{only: true}); err != nil {
		t.Fatal(err)
	}
	v, err := s.version("likes", "2")
	s.Check(err)
	if changes, err := s.Changes(t.Context(), before, v); changes != "" || err != nil {
		t.Fatalf("%q, %v", changes, err)
	}
	out, err := s.run("experiment", "define", s.File("a.yaml", strings.NewReplacer("limit: 30", "model: likes", "state: draft", "state: running", "share: 0", "share: 100").Replace(clitest.Fresher)))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	err = s.letServe(t.Context(), before, v, false)
	if !errors.Is(err, errHeld) || !strings.Contains(err.Error(), "likes 2 is published and does not serve: it changes what variant treatment of experiment fresher, which runs, is ranked by; add --serve") {
		t.Error(err)
	}
	s.serves("1")
	s.Check(s.letServe(t.Context(), before, v, true))
	s.serves("2")
}

// What is written past the commands, under a built-in's name or as no ledger, is told
// as what it is, and goes by the commands.
func TestWhatIsWrittenPastTheCommandsIsDropped(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	v, _, err := s.Serving.Models.Publish(t.Context(), "home", "1", []byte("no pack"), "mallory")
	s.Check(err)
	s.Check(s.Serving.Models.Serve(t.Context(), v, nil, "mallory"))
	s.Check(s.list(t.Context(), new(display.Form)))
	if out := s.out.String(); !strings.Contains(out, "never asked for") || !strings.Contains(out, "millrace model drop home 1 --apply removes it") {
		t.Errorf("list says\n%s", out)
	}
	s.Check(s.rollout.drop(t.Context(), "home", "1", false, isMeant))
	if s.Serving.Models.Has(v) {
		t.Error("home 1 is still there")
	}

	raw, err := documents.Watch(t.Context(), s.Client, "models")
	s.Check(err)
	_, err = raw.PutIf(t.Context(), "garb", []byte("garbage"))
	s.Check(err)
	if out, err := s.run("model", "drop", "garb"); err != nil || !strings.Contains(out, "cannot be read") {
		t.Errorf("dry: %v\n%s", err, out)
	}
	if out, err := s.run("model", "drop", "garb", "--apply", "--yes"); err != nil || !strings.Contains(out, "model garb is dropped") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := s.run("model", "drop", "garb"); err == nil || !strings.Contains(err.Error(), "which version of garb") {
		t.Errorf("what can be read goes without a version: %v", err)
	}
	definitions, err := documents.Watch(t.Context(), s.Client, "definitions")
	s.Check(err)
	_, err = definitions.PutIf(t.Context(), "garb", []byte("garbage"))
	s.Check(err)
	if out, err := s.run("feed", "list"); err != nil || !regexp.MustCompile(`\ngarb +\? +\? +cluster, version \? +what etcd has of it cannot be read`).MatchString(out) {
		t.Errorf("feed list: %v\n%s", err, out)
	}
}

// A rollback with nothing to go back to says so, and what to run.
func TestRollbackToNothing(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	if err := s.rollout.rollback(t.Context(), "rm", false, isMeant); err == nil || !strings.HasPrefix(err.Error(), `no model "rm" has been pushed`) {
		t.Error(err)
	}
	_, _, err := s.Serving.Models.Publish(t.Context(), "rm", "1", []byte("no pack"), "ann")
	s.Check(err)
	if err := s.rollout.rollback(t.Context(), "rm", false, isMeant); err == nil || !strings.HasPrefix(err.Error(), "no version of model rm serves, and none that is still there served before") {
		t.Error(err)
	}
}

// A node that cannot keep a pack on its disk says so with its admission.
func TestAnUnkeptPackIsTold(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.AnswerAs("n1", func(artefacts.Version) members.Admission { return members.Admission{Unkept: "no space left on device"} })
	const want = "admitted, but not kept on its disk, so that a restart while etcd is away loses it: no space left on device"
	if out, err := s.pushed("1", "1", push{}); err != nil || !strings.Contains(out, want) || !strings.Contains(out, "likes 1 serves") {
		t.Errorf("%v:\n%s", err, out)
	}
	s.out.Reset()
	s.Check(s.list(t.Context(), new(display.Form)))
	if out := s.out.String(); !strings.Contains(out, "1 of 1") || !strings.Contains(out, want) {
		t.Errorf("list says\n%s", out)
	}
	// The way out is of the node where nothing is wrong with the version, and a refusal
	// is told before a node that is only dead.
	for _, c := range []struct {
		of            nodeAnswer
		first, wayOut string
	}{
		{nodeAnswer{Node: "n2", State: stateUnheard}, "n1: not heard", "start that node"},
		{nodeAnswer{Node: "n2", State: stateRefused, Why: "no"}, "n2: refused: no", ""},
	} {
		if l := lacking([]nodeAnswer{{Node: "n1", State: stateUnheard}, c.of}); !l.all || l.first != c.first || l.refused != (c.wayOut == "") || !strings.Contains(l.wayOut, c.wayOut) || l.refused && l.wayOut != "" {
			t.Errorf("%+v", l)
		}
	}
	if l := lacking([]nodeAnswer{{Node: "n1", State: stateAdmitted, Unkept: "full"}}); l.all || l.refused || !strings.Contains(l.wayOut, "make space") {
		t.Errorf("%+v", l)
	}
	if l := lacking([]nodeAnswer{{Node: "n1", State: stateUnheard}}); !l.all || l.first != "n1: not heard" {
		t.Errorf("on no node: %+v", l)
	}
}

// A file that show has written is the document again: nothing of what stood above it
// piles up, however often.
func TestWhatIsShownCanBeDefined(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	file := filepath.Join(t.TempDir(), "clicked.yaml")
	const document = "# experiment of the sale\nlayers: [{name: l, salt: s, unit: viewer}]\nexperiments: [{name: few, layer: l, feeds: [home], state: draft, slots: [0-99], share: 0, variants: [{name: control, weight: 5000}, {name: less, weight: 5000, set: {limit: 5}}]}]\n"
	s.Check(os.WriteFile(file, []byte(document), 0o644))
	if _, err := s.run("experiment", "define", file); err != nil {
		t.Fatal(err)
	}
	shown, err := s.run("experiment", "show", "few")
	s.Check(err)
	if !strings.HasSuffix(shown, document) || !strings.HasPrefix(shown, "# document clicked, version 1\n") {
		t.Fatalf("%s", shown)
	}
	above := strings.TrimSuffix(shown, document)
	for _, again := range []string{shown, above + above + document} {
		s.Check(os.WriteFile(file, []byte(again), 0o644))
		if out, err := s.run("experiment", "define", file); err != nil || !strings.HasPrefix(out, "document clicked is defined, version 1\nno change\n") {
			t.Errorf("%v:\n%s", err, out)
		}
	}
	if again, err := s.run("experiment", "show", "few"); err != nil || again != shown {
		t.Errorf("%v:\n%s", err, again)
	}
	s.Check(os.WriteFile(file, []byte(strings.Replace(shown, "layer: l,", "layer: m,", 1)), 0o644))
	if _, err := s.run("experiment", "define", file); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("line %d,", 3+strings.Count(above, "\n"))) {
		t.Errorf("%v", err)
	}
}

// What a variant's model reads of the viewer and the feed's own does not is told where
// the variant is defined: only it refuses callers who send another type.
func TestWhatAVariantReadsOfTheViewerIsTold(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	dir := t.TempDir()
	for name, text := range map[string]string{
		modelpack.SpecFile:   "name: pods\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {age: double, languages: list(string)}\nfeatures: {likes: record.likes * viewer.age}\nscorer: linear\nparameters: {weights: {likes: 2}}\n",
		modelpack.GoldenFile: `{"features":{"likes":1},"score":2,"record":{"likes":1},"viewer":{"age":1}}`,
		modelpack.CardFile:   "Pods.\n",
	} {
		s.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	_, err := modelpack.Seal(dir, relevance.ShippedSchemas())
	s.Check(err)
	if out, err := s.run("model", "push", dir, "--timeout", "1m"); err != nil {
		t.Fatal(out, err)
	}
	s.NewsAt("model: recency\n")
	file := filepath.Join(t.TempDir(), "d.yaml")
	const all = "note: experiment few, draft: variant other ranks feed news by pods, which reads viewer.age (number), viewer.languages (list(string)), as recency does not: it "
	for _, c := range []struct{ feed, set, want string }{
		{"news", "model: pods", all + "refuses callers who send another type\n"},
		{"news", "interleave: [recency, pods]", all + "drafts nothing where callers send another type\n"},
		{"home", "model: pods", strings.NewReplacer("feed news", "feed home", ", viewer.languages (list(string))", "", "recency", "home").Replace(all) + "refuses callers who send another type\n"},
		{"news", "limit: 7", ""},
	} {
		s.Check(os.WriteFile(file, []byte("layers: [{name: l, salt: s, unit: viewer}]\nexperiments: [{name: few, layer: l, feeds: ["+c.feed+"], state: draft, slots: [0-99], share: 0, variants: [{name: control, weight: 5000}, {name: other, weight: 5000, set: {"+c.set+"}}]}]\n"), 0o644))
		out, err := s.run("experiment", "define", file)
		if err != nil || !strings.Contains(out, c.want) || strings.Contains(out, "reads viewer.") != (c.want != "") {
			t.Errorf("%s on %s: %v\n%s", c.set, c.feed, err, out)
		}
	}
}

// A variant that sets what all its feeds say already is told: nothing would be compared.
func TestAVariantThatChangesNothingIsTold(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	for name, definition := range map[string]string{"jobs": "name: jobs\nmodel: recency\ncap_per_entity: 3\n", "shops": "name: shops\nmodel: recency\ncap_per_entity: 2\nlimit: 20\n"} {
		v, _, err := s.Serving.Feeds.Versions.Publish(t.Context(), name, "", []byte(definition), "test")
		s.Check(err)
		s.Check(s.Serving.Feeds.Versions.Serve(t.Context(), v, nil, "test"))
	}
	file := filepath.Join(t.TempDir(), "d.yaml")
	for set, told := range map[string]bool{
		"model: recency, limit: 20": true, "filter: \"\", window: 0s": true, "cap_per_entity: 3": false, "limit: 19": false,
		"interleave: [recency, home]": false, "types: [post]": false, "spacing: {}": true,
	} {
		s.Check(os.WriteFile(file, []byte("layers: [{name: l, salt: s, unit: viewer}]\nexperiments: [{name: few, layer: l, feeds: [jobs, shops], state: draft, slots: [0-99], share: 0, variants: [{name: control, weight: 5000}, {name: other, weight: 5000, set: {"+set+"}}]}]\n"), 0o644))
		out, err := s.run("experiment", "define", file)
		if err != nil {
			t.Errorf("%s: %v", set, err)
		}
		if got := strings.Contains(out, "note: experiment few, draft: variant other sets what its feeds (jobs, shops) say already"); got != told {
			t.Errorf("%s:\n%s", set, out)
		}
	}
}

// A rollback to a version that is condemned, and so would not rank, waits for --serve.
func TestARollbackToWhatIsCondemnedIsMeant(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	for _, version := range []string{"1", "2"} {
		if out, err := s.pushed(version, version, push{}); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
	}
	s.Check(s.Serving.Failed.Condemn(t.Context(), s.Serving.Models, s.Serving.Models.All()["likes"][0], "it panicked on n1", "n1", time.Now()))
	clitest.WaitFor(t.Context(), t, "it to be condemned", func() bool { return len(s.Serving.Failed.Current()) > 0 })
	err := s.rollback(t.Context(), "likes", false, isMeant)
	if err == nil || !strings.Contains(err.Error(), "likes 1 is condemned, and would not rank: it panicked on n1; let it be asked again (millrace model release likes 1)") {
		t.Errorf("%v", err)
	}
	s.serves("2")
	s.Check(s.rollback(t.Context(), "likes", true, isMeant))
	s.serves("1")
}
