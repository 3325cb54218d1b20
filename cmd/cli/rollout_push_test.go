//go:build linux

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/models"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/relevance/modelpack"
)

// forest writes a LightGBM model of two features of so many bytes or a little
// more, of trees of 255 leaves that are as deep as they must be.
func forest(seed uint64, size int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	b.WriteString("tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=1\nobjective=regression\nfeature_names=likes comments\n\n")
	const leaves = 255
	for n := 0; b.Len() < size; n++ {
		lists := map[string][]string{}
		add := func(list, value string) { lists[list] = append(lists[list], value) }
		child := func(i int) string { // of a tree in which i has the children 2i+1 and 2i+2
			if i < leaves-1 {
				return strconv.Itoa(i)
			}
			return strconv.Itoa(^(i - (leaves - 1)))
		}
		for i := range leaves - 1 {
			add("split_feature", strconv.Itoa(r.IntN(2)))
			add("threshold", strconv.FormatFloat(13*r.Float64(), 'g', -1, 64))
			add("decision_type", "2")
			add("left_child", child(2*i+1))
			add("right_child", child(2*i+2))
		}
		for range leaves {
			add("leaf_value", strconv.FormatFloat(r.NormFloat64(), 'g', -1, 64))
		}
		fmt.Fprintf(&b, "Tree=%d\nnum_leaves=%d\nnum_cat=0\n", n, leaves)
		for _, list := range []string{"split_feature", "threshold", "decision_type", "left_child", "right_child", "leaf_value"} {
			fmt.Fprintf(&b, "%s=%s\n", list, strings.Join(lists[list], " "))
		}
		b.WriteString("\n")
	}
	b.WriteString("end of trees\n")
	return b.String()
}

// TestRolloutOfALargePack pushes versions of a pack and rolls back, by the
// commands, and waits until every node has the version and both brokers answer by
// it. With MILLRACE_FAULTS packs have 10 MB.
func TestRolloutOfALargePack(t *testing.T) {
	_, measured := faultTime(t, time.Second)
	size, rounds := 100_000, 1
	if measured {
		size, rounds = 10_000_000, 10
	}
	c := startRollingCluster(t)
	spec := "name: large\nversion: \"%d\"\nschemas: [millrace.Activity]\nfeatures: {likes: record.likes, comments: record.comments}\nscorer: trees\ntrees: {model: model.txt}\n"
	var records strings.Builder
	for i := range 100 { // as a model of trees needs
		fmt.Fprintf(&records, `{"record":{"likes":%d,"comments":%d}}`+"\n", i%13, i/13)
	}
	var packs []string
	for version := range rounds + 1 {
		files, dir := map[string]string{"model.txt": forest(uint64(version), size)}, t.TempDir()
		text := fmt.Sprintf(spec, version+1)
		c.check(os.WriteFile(filepath.Join(dir, modelpack.SpecFile), []byte(text), 0o644))
		c.check(os.WriteFile(filepath.Join(dir, "model.txt"), []byte(files["model.txt"]), 0o644))
		rows := filepath.Join(dir, "rows.ndjson")
		c.check(os.WriteFile(rows, []byte(records.String()), 0o644))
		var golden bytes.Buffer
		c.check(models.CompleteGolden(t.Context(), &golden, io.Discard, dir, rows, nil))
		packs = append(packs, c.pack(text, golden.String(), files))
	}
	c.push(packs[0])
	c.define("large", "model: large\nlimit: 10\n")
	req := rollingRequests("large", 3)[0]
	c.spoken(req, "1", "")
	var pushed, back []time.Duration
	for i, pack := range packs[1:] {
		newer, older := strconv.Itoa(i+2), strconv.Itoa(i+1)
		began, spoken := time.Now(), c.speaking(req, newer, "")
		said := c.push(pack)
		serves := time.Since(began)
		pushed = append(pushed, spoken().Sub(began))
		if strings.Count(said, "admitted") != 3 {
			t.Errorf("pushed:\n%s", said)
		}
		began, spoken = time.Now(), c.speaking(req, older, "")
		c.rollback("large")
		back = append(back, spoken().Sub(began))
		t.Logf("version %s: every broker answers by it after %v (the command took %v), and by %s %v after a rollback", newer, pushed[i], serves, older, back[i])
		c.push(pack) // which is there already, and serves
		c.spoken(req, newer, "")
	}
	if measured {
		slices.Sort(pushed)
		slices.Sort(back)
		figure.Print("push_10mb", pushed[len(pushed)/2].Seconds(), "s")
		figure.Print("push_10mb_slowest", pushed[len(pushed)-1].Seconds(), "s")
		figure.Print("rollback", back[len(back)/2].Seconds(), "s")
		figure.Print("rollback_slowest", back[len(back)-1].Seconds(), "s")
	}
}

// TestRolloutOfDefinitions defines a feed anew, and pauses and starts an experiment,
// by the commands, and waits until both brokers answer so.
func TestRolloutOfDefinitions(t *testing.T) {
	_, measured := faultTime(t, time.Second)
	rounds := 2
	if measured {
		rounds = 20
	}
	c := startRollingCluster(t)
	c.define("defined", "model: recency\nlimit: 9\n")
	req := rollingRequests("defined", 5)[0]
	items := func(want int) func() time.Time {
		return c.telling(req, fmt.Sprintf("with %d items", want), func(r *feedv1.GetFeedResponse) bool { return len(r.Items) == want })
	}
	const experiment = `layers: [{name: lengths, salt: lengths-2026, unit: viewer}]
experiments:
  - {name: length, layer: lengths, feeds: [defined], state: running, slots: [0-9999], share: 10000, forced: {%q: set},
     variants: [{name: control, weight: 5000}, {name: set, weight: 5000, set: {limit: 7}}]}
`
	var feeds, experiments []time.Duration
	for i := range rounds {
		began, told := time.Now(), items(5+i%2)
		run(t, "feed", "define", "--etcd", c.etcd.Addr(), clitest.WriteConfig(t, "defined", "name: defined\nmodel: recency\nlimit: %d\n", 5+i%2))
		feeds = append(feeds, told().Sub(began))
	}
	run(t, "experiment", "define", "--etcd", c.etcd.Addr(), clitest.WriteConfig(t, "length", experiment, req.Viewer.Id))
	items(7)()
	for range rounds / 2 {
		began, told := time.Now(), items(5+(rounds-1)%2)
		run(t, "experiment", "pause", "length", "--etcd", c.etcd.Addr())
		experiments = append(experiments, told().Sub(began))
		began, told = time.Now(), items(7)
		run(t, "experiment", "start", "length", "--etcd", c.etcd.Addr())
		experiments = append(experiments, told().Sub(began))
	}
	if measured {
		for name, took := range map[string][]time.Duration{"feed_live": feeds, "experiment_live": experiments} {
			slices.Sort(took)
			figure.Print(name, took[len(took)/2].Seconds(), "s")
			figure.Print(name+"_slowest", took[len(took)-1].Seconds(), "s")
		}
	}
}

// TestRolloutOfManyVersions asks for pages and the ones after them while versions
// of a model are pushed and rolled back, by the commands. No answer has two
// versions, and later pages have that of the first. With MILLRACE_FAULTS
// there are twenty of each change, and as many answers as MILLRACE_VERSIONS says.
func TestRolloutOfManyVersions(t *testing.T) {
	_, measured := faultTime(t, time.Second)
	enough, changes := 3000, 4
	if measured {
		var err error
		if enough, err = strconv.Atoi(os.Getenv("MILLRACE_VERSIONS")); err != nil {
			t.Fatal(err)
		}
		changes = 20
	}
	c := startRollingCluster(t)
	var packs []string
	for i := range changes + 1 { // the number of a score is its version's
		packs = append(packs, c.pack(
			fmt.Sprintf("name: telling\nversion: \"%d\"\nschemas: [millrace.Activity]\nfeatures: {likes: record.likes}\nscorer: linear\nparameters: {bias: %[1]d, weights: {likes: 0.001}}\n", i+1),
			fmt.Sprintf(`{"features":{"likes":1},"score":%d.001,"record":{"likes":1}}`, i+1), map[string]string{}))
	}
	c.push(packs[0])
	c.define("telling", "model: telling\nlimit: 5\n")
	reqs := rollingRequests("telling", 5)
	c.spoken(reqs[0], "1", "")

	var asked tellingAnswers
	ctx, stop := context.WithCancel(c.ctx)
	var askers sync.WaitGroup
	const clients = 8
	for i := range clients {
		askers.Go(func() {
			for k := i; ctx.Err() == nil; k += clients {
				asked.pages(ctx, c, k%2, proto.CloneOf(reqs[k%len(reqs)]))
			}
		})
	}
	// The changes are spread over the answers.
	await := func(answers int) {
		for tick := time.NewTicker(10 * time.Millisecond); int(asked.answers.Load()) < answers && c.ctx.Err() == nil; <-tick.C {
		}
	}
	pushes, rollbacks := 0, 0
	for i := range changes {
		await(enough * (2*i + 1) / (2*changes + 1))
		c.push(packs[i+1])
		pushes++
		await(enough * (2*i + 2) / (2*changes + 1))
		c.rollback("telling")
		rollbacks++
	}
	await(enough)
	stop()
	askers.Wait()
	asked.Lock()
	defer asked.Unlock()
	t.Logf("%d answers by %d versions, %d of them later pages, %d of these after a change; %d pushes, %d rollbacks", asked.answers.Load(), len(asked.versions), asked.later, asked.kept, pushes, rollbacks)
	if len(asked.faults) > 0 {
		t.Errorf("%d faults: %v", len(asked.faults), errors.Join(asked.faults[:min(5, len(asked.faults))]...))
	}
	if len(asked.versions) != changes+1 || asked.kept == 0 {
		t.Errorf("%d versions of %d answered, %d later pages after a change: the test tries too little", len(asked.versions), changes+1, asked.kept)
	}
	if measured {
		figure.Print("versions_answers", float64(asked.answers.Load()), "answers")
		figure.Print("versions_two_in_an_answer", float64(asked.mixed), "answers")
		figure.Print("versions_page_of_another", float64(asked.strayed), "answers")
		figure.Print("versions_failed", float64(len(asked.faults)-asked.mixed-asked.strayed), "answers")
	}
}

// tellingAnswers is what answers by the model telling told.
type tellingAnswers struct {
	answers atomic.Int64
	newest  atomic.Int64 // which version ranked a first page last

	sync.Mutex
	versions       map[string]int
	later, kept    int // later pages, and those for which another version served by then
	mixed, strayed int // answers with two versions, and pages of another than their first
	faults         []error
}

// pages asks for a page and two after it, and holds every score against the
// version that the receipt names.
func (a *tellingAnswers) pages(ctx context.Context, c *rollingCluster, broker int, req *feedv1.GetFeedRequest) {
	first := ""
	for page := range 3 {
		resp, err := c.clients[broker].GetFeed(ctx, req)
		if ctx.Err() != nil {
			return
		}
		a.answers.Add(1)
		a.Lock()
		version := resp.GetReceipt().GetModelVersion()
		switch {
		case err != nil:
			a.faults = append(a.faults, err)
		case len(resp.Coverage.Missing) > 0 || len(resp.Items) != 5:
			a.faults = append(a.faults, fmt.Errorf("%d items, %v", len(resp.Items), resp.Coverage))
		case page > 0 && version != first:
			a.strayed++
			a.faults = append(a.faults, fmt.Errorf("page %d by version %s, the first by %s", page+1, version, first))
		}
		for _, it := range resp.GetItems() {
			if strconv.Itoa(int(it.Score)) != version {
				a.mixed++
				a.faults = append(a.faults, fmt.Errorf("the score %v in an answer by version %s", it.Score, version))
				break
			}
		}
		if number, _ := strconv.ParseInt(version, 10, 64); page == 0 {
			if a.versions == nil {
				a.versions = map[string]int{}
			}
			a.versions[version]++
			a.newest.Store(number)
			first = version
		} else if a.later++; a.newest.Load() != number {
			a.kept++
		}
		a.Unlock()
		if err != nil {
			return
		}
		req.PageToken = resp.NextPageToken
	}
}
