package cli

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
)

// ran is what a command says, by its output or its error.
func (s *stage) ran(args ...string) string {
	out, err := s.run(args...)
	if err != nil {
		out += err.Error()
	}
	return out
}

// A feed whose bytes etcd lacks is told as such by all commands, with one way out; it is
// not called private, and no experiment is to be stopped for it. What others change goes
// on, and what it was can be put in place again.
func TestAFeedWithoutBytesIsToldAsSuch(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.NewsAt("model: recency\n")
	document := s.File("a.yaml", strings.NewReplacer("[home]", "[news]", "limit: 30", "window: 1h").Replace(clitest.Fresher))
	_, err := s.run("experiment", "define", document)
	s.Check(err)
	s.Bare(feeds.Kind, "news")
	const says = "feed news cannot be read: the bytes of definition news 1 are not in etcd; " + artefacts.BytesWayOut + "; else put feed news in place anew with millrace feed define, or go back with millrace feed rollback news --apply"
	for _, args := range [][]string{
		{"feed", "list"}, {"feed", "show", "news"}, {"feed", "diff", s.File("news.yaml", "name: news\nmodel: recency\nlimit: 3\n")},
		{"experiment", "list"}, {"experiment", "start", "fresher", "--share", "1"}, {"experiment", "define", document},
		{"doctor", "--brokers", "127.0.0.1:1", "--grpc", "127.0.0.1:1"},
	} {
		out := s.ran(args...)
		if !strings.Contains(out, says) || strings.Contains(out, "private") || strings.Contains(out, "stop fresher") {
			t.Errorf("%v says\n%s", args, out)
		}
		if args[0] == "doctor" && !strings.Contains(out, "warn  feeds are whole          "+says) {
			t.Errorf("doctor says of feeds\n%s", out)
		}
	}
	if out := s.ran("feed", "list"); !strings.Contains(strings.Join(strings.Fields(out), " "), "news ? ? cluster, version 1") {
		t.Error(out)
	}
	if out := s.ran("experiment", "list"); !strings.Contains(out, "experiment fresher, draft: whether its variants fit is not known; brokers that keep the feed as it last was good go on by that: ") || strings.Contains(out, "give nobody") {
		t.Error(out)
	}
	for _, args := range [][]string{
		{"feed", "define", s.File("other.yaml", "name: other\nmodel: recency\n")},
		{"feed", "define", s.File("news.yaml", "name: news\nmodel: recency\n")},
		{"experiment", "start", "fresher", "--share", "1"},
	} {
		if out, err := s.run(args...); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	s.Check(s.Feeds.Settle(t.Context()))
	s.NewsAt("model: recency\nlimit: 4\n")
	s.Bare(feeds.Kind, "news")
	if out := s.ran("feed", "rollback", "news"); !strings.Contains(out, "version 1 of feed news cannot be read: the bytes of definition news 1 are not in etcd; "+artefacts.BytesWayOut+"; else define it again if it is needed") {
		t.Error(out)
	}
	if out := s.ran("feed", "define", s.File("news.yaml", "name: news\nmodel: recency\nlimit: 3\n")); !strings.Contains(out, "what it changes in experiment fresher, which runs, is not known: feed news cannot be read") {
		t.Error(out)
	}
}

// An experiment whose document's bytes etcd lacks is not called gone, and a model whose
// pack it lacks is warned of though all nodes have it.
func TestLostBytesAreNoEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	pack := s.RatePack("1", "likes")
	for _, args := range [][]string{
		{"experiment", "define", s.File("ranking.yaml", clitest.Fresher)}, {"experiment", "start", "fresher", "--share", "1"}, {"model", "push", pack, "--timeout", "1m"},
	} {
		out, err := s.run(args...)
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	s.Bare(experiments.Kind, "ranking")
	s.Bare(indexnode.ModelsKind, "rate")
	for _, act := range []string{"show", "status", "hold", "wait"} {
		out := s.ran("experiment", act, "fresher")
		if !strings.Contains(out, "experiment fresher stood in document ranking, and whether it still does is not known: the bytes of experiment ranking 2 are not in etcd; "+artefacts.BytesWayOut) || strings.Contains(out, "any more") {
			t.Errorf("%s says\n%s", act, out)
		}
	}
	doctor := []string{"doctor", "--brokers", "127.0.0.1:1", "--grpc", "127.0.0.1:1"}
	out := s.ran(doctor...)
	for _, want := range []string{
		"warn  models do not fail       the bytes of model rate 1 are not in etcd: it serves, and who starts without it on disk does not get it; " + artefacts.BytesWayOut + "; else push the same pack again\n",
		"document ranking cannot be read, brokers that keep its bytes go on by them, and others leave it out: the bytes of experiment ranking 2 are not in etcd; " + artefacts.BytesWayOut + "; else put document ranking in place again",
		"the bytes of document ranking 1 are not in etcd: nobody can go back to it; ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor says\n%s\nand not %q", out, want)
		}
	}
	const lost = "the bytes of model rate 1 are not in etcd: it serves, and who starts without it on disk does not get it; " + artefacts.BytesWayOut + "; else push the same pack again\n"
	if out := s.ran("model", "list"); !strings.Contains(out, lost) || !strings.Contains(s.ran("model", "list", "--output", "json"), `"bytes_missing":true`) {
		t.Error(out)
	}
	by := strings.NewReplacer("ranking", "other", "fresher", "rated", "limit: 30", "model: rate").Replace(clitest.Fresher)
	if out, err := s.run("experiment", "define", s.File("other.yaml", by)); err != nil || !strings.Contains(out, "note: experiment rated, draft, is ranked by rate 1: "+lost) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"experiment", "list"}, {"experiment", "show", "rated"}, {"experiment", "status", "rated", "--brokers", "127.0.0.1:1"}, doctor} {
		if out := s.ran(args...); !strings.Contains(out, "experiment rated, draft, is ranked by rate 1: "+lost) {
			t.Errorf("%v says\n%s", args, out)
		}
	}
	if out := s.ran("model", "pull", "rate"); !strings.Contains(out, "the bytes of model rate 1 are not in etcd; "+artefacts.BytesWayOut) {
		t.Error(out)
	}
	if out, err := s.run("model", "push", pack, "--timeout", "1m"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out := s.ran(doctor...); strings.Contains(out, "the bytes of model rate") {
		t.Errorf("a push has not brought them back:\n%s", out)
	}
}

// A restoration of bytes alone says what it brought, and changes nothing else.
func TestClusterRestoreBringsBytesAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	data := t.TempDir()
	keeps, err := cluster.Open(t.Context(), cluster.Config{Endpoints: s.Etcd, Name: s.Name, Dir: filepath.Join(data, "cluster"), Log: slog.New(slog.DiscardHandler)})
	s.Check(err)
	defer keeps.Close()
	w, err := keeps.Watch(t.Context())
	s.Check(err)
	_, err = artefacts.Watch(t.Context(), keeps, feeds.Kind)
	s.Check(err)
	s.NewsAt("model: recency\n")
	clitest.WaitFor(t.Context(), t, "the bytes to be kept", func() bool {
		files, err := os.ReadDir(filepath.Join(data, "cluster", "bodies-"+feeds.Kind))
		return err == nil && len(files) == 1 && w.Current().Epoch() == 1
	})
	s.Bare(feeds.Kind, "news")
	out := s.ran("cluster", "restore", "--data", data)
	for _, want := range []string{
		"feed news: the bytes of version 1 are restored from " + filepath.Join(data, "cluster") + "\n",
		"etcd lacked bytes alone: those of 1 versions are restored; all else is as before, assignment epoch 1 and ramps too\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nlacks %q", out, want)
		}
	}
	if out := s.ran("feed", "list"); strings.Contains(out, "cannot be read") {
		t.Error(out)
	}
	if out := s.ran("cluster", "history"); !strings.Contains(out, "restore  bytes that etcd lacked") {
		t.Error(out)
	}
	if out := s.ran("cluster", "restore", "--data", data); !strings.Contains(out, "nothing is restored") {
		t.Error(out)
	}
}
