package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/steering"
)

// says holds an error to be of a kind, if is is not nil, and to say something.
func says(t *testing.T, err, is error, text string) {
	t.Helper()
	if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), text) {
		t.Errorf("%v; want %v that says %q", err, is, text)
	}
}

// Whoever only looks writes nothing into an empty etcd; how etcd is dialled is up to the
// caller; and a directory that cannot be is refused.
func TestOpensAsItIsTold(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	var dialled atomic.Int32
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
	looks := etcd.openAs(cluster.Config{ReadOnly: true, Dial: dial})
	if w := watch(t, looks); w.Fault() == nil || dialled.Load() == 0 || looks.Name() != "test" {
		t.Errorf("%s: %v, after %d connections", looks.Name(), w.Fault(), dialled.Load())
	}
	if keys := etcdtest.Lasting(t, etcd.addr, ""); len(keys) > 0 {
		t.Errorf("whoever only looks writes %v", keys)
	}
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o600))
	_, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{etcd.addr}, Name: "test", Dir: filepath.Join(file, "dir")})
	says(t, err, nil, "not a directory")
}

// A watcher whose context has ended before its first answer fails, as does whoever waits for
// anything else.
func TestWaitsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	c, over := etcd.open(""), errors.New("over")
	ended, end := context.WithCancelCause(t.Context())
	end(over)
	for what, wait := range map[string]func(ctx context.Context) error{
		"map":        func(ctx context.Context) error { return second(c.Watch(ctx)) },
		"documents":  func(ctx context.Context) error { return second(documents.Watch(ctx, c, "feeds")) },
		"artefacts":  func(ctx context.Context) error { return second(artefacts.Watch(ctx, c, "models")) },
		"condemned":  func(ctx context.Context) error { return second(artefacts.WatchCondemned(ctx, c)) },
		"admissions": func(ctx context.Context) error { return second(members.WatchAdmitted(ctx, c)) },
		"secrets":    func(ctx context.Context) error { return second(secrets.Watch(ctx, c, "pages")) },
		"leading":    func(ctx context.Context) error { return second(c.Lead(ctx, cluster.Leader{})) },
	} {
		if err := wait(ended); err == nil {
			t.Errorf("%s: it is not over", what)
		}
	}
	for _, act := range []string{"steered", "ended"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { steering.Changed(ctx, c); close(done) }()
		await(t, "it is told: "+act, func() <-chan struct{} { return closedAfter(t) }, func() bool {
			if act == "ended" {
				cancel()
			} else {
				etcd.put("/millrace/test/steer/x", "x")
			}
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		cancel()
	}
	in, out := make(chan struct{}), make(chan struct{})
	alone := make(chan error, 1)
	go func() {
		alone <- c.Alone(t.Context(), "stay", func(context.Context) error { close(in); <-out; return nil })
	}()
	<-in
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := c.Alone(short, "come too", func(context.Context) error { return nil }); err == nil {
		t.Error("two act at once")
	}
	close(out)
	check(t, <-alone)

	// A watcher that is behind: what is written stands, whatever becomes of the wait for it.
	a, err := artefacts.Watch(t.Context(), c, "models")
	check(t, err)
	done := c.Read()
	defer done()
	ctx, cancel := context.WithCancel(t.Context())
	published := make(chan error, 1)
	go func() { published <- second2(a.Publish(ctx, "m", "1", []byte("m"), "ann")) }()
	await(t, "it is written", func() <-chan struct{} { return closedAfter(t) }, func() bool {
		return len(etcdtest.Lasting(t, etcd.addr, "/millrace/test/docs/models/")) == 1
	})
	cancel()
	check(t, <-published)
	short, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	says(t, a.Settle(short), cluster.ErrAway, "deadline")
}

func second2[A, B any](_ A, _ B, err error) error { return err }

// Values that nobody has written as they are, and names that stand for nothing, are told, and
// hide nothing else.
func TestOddValues(t *testing.T) {
	t.Parallel()
	ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
	one, kept := documents.Checksum([]byte("one")), map[string]artefacts.Version{}
	kept["good"], kept["spoilt"] = artefacts.Version{Name: "good", Version: "1", Sum: one}, artefacts.Version{Name: "spoilt", Version: "1", Sum: strings.Repeat("a", 64)}
	kept["other"], kept["nameless"], kept["up"] = artefacts.Version{Name: "good", Version: "1", Sum: one}, artefacts.Version{Name: "nameless", Sum: one}, artefacts.Version{Name: "up", Version: "1", Sum: "../secret-pages"}
	body, err := json.Marshal(kept)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, "used-models.json"), body, 0o600))
	check(t, os.Mkdir(filepath.Join(dir, "bodies-models"), 0o700))
	for _, sum := range []string{one, strings.Repeat("a", 64)} {
		check(t, os.WriteFile(filepath.Join(dir, "bodies-models", sum), []byte("one"), 0o600))
	}
	c := etcd.open(dir)
	models, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	if got := models.LastUsed(); len(got) != 1 || string(got[kept["good"]]) != "one" {
		t.Errorf("used last: %q", got)
	}
	if _, by := models.GoesBy(); !slices.Equal(by.Not, []string{"good", "spoilt"}) {
		t.Errorf("it goes by %+v", by)
	}
	_, err = models.History(ctx, "none")
	says(t, err, artefacts.ErrNoVersion, `there is no model "none"`)
	_, err = models.Body(ctx, artefacts.Version{Name: "none", Version: "1", Sum: one})
	says(t, err, artefacts.ErrNoVersion, `there is no model "none"`)
	if why, err := models.Unreadable(ctx, "../x"); why != nil || err != nil {
		t.Errorf("a name that is none cannot be read: %v, %v", why, err)
	}

	for _, bad := range []string{"../x", "short"} {
		etcd.put("/millrace/test/secrets/short", "x")
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err := secrets.Get(ended, c, bad)
		says(t, err, nil, "cluster: secret")
		_, err = secrets.Watch(ended, c, bad)
		says(t, err, nil, "cluster: secret")
	}
	_, err = secrets.Share(ctx, c, "short", nil)
	says(t, err, nil, "it has 1 bytes, not 32")

	older, newer := time.Now().Add(-time.Hour).UTC().Truncate(time.Second), time.Now().UTC().Truncate(time.Second)
	for key, e := range map[string]audit.Entry{"1": {Who: "ann", Act: cluster.RestoredAct, Time: older}, "3": {Who: "ann", Act: cluster.RestoredAct, Time: newer}, "4": {Who: "ann", Act: cluster.RestoredAct, Time: older}, "5": {Who: "ann", Act: "x", Time: newer.Add(time.Hour)}} {
		text, err := json.Marshal(e)
		check(t, err)
		etcd.put("/millrace/test/history/"+key, string(text))
	}
	etcd.put("/millrace/test/history/2", "{")
	all, err := c.History(ctx)
	if check(t, err); len(all) != 5 || all[1].Act != "unreadable" || all[1].On != "history/2" || all[1].Who != "unknown" || all[1].Fault == "" {
		t.Errorf("%+v", all)
	}
	if at, err := c.LastRestored(ctx); err != nil || !at.Equal(newer) {
		t.Errorf("restored at %v, %v", at, err)
	}
	says(t, c.Note(ctx, audit.Entry{Who: "ann", Act: strings.Repeat("x", keyspace.MaxDocumentBytes)}), nil, "an act takes")
	etcd.put("/millrace/test/leader", "{")
	_, leads, err := c.Leader(ctx)
	if leads {
		t.Error("somebody leads who cannot be read")
	}
	says(t, err, nil, "cluster: the leader's key: ")

	etcd.put("/millrace/test/map/models/n1", `[{"name":"m"}]`)
	etcd.put("/millrace/test/map/models/n9", "{")
	admitted, err := members.WatchAdmitted(ctx, c)
	check(t, err)
	says(t, admitted.Fault(), nil, "cluster: models of n9: ")
	if now := admitted.Current(); len(now["n1"]) != 1 || len(now["n9"]) != 0 {
		t.Errorf("admitted are %v", now)
	}
	etcd.put("/millrace/test/seen/n1", "2026-01-02T03:04:05Z")
	etcd.put("/millrace/test/seen/n9", "yesterday")
	if seen, err := members.Seen(ctx, c); err != nil || len(seen) != 1 || seen["n1"].Day() != 2 {
		t.Errorf("seen: %v, %v", seen, err)
	}

	// A trace that is not written anew ends when it did before, whatever else is traced.
	etcd.put("/millrace/test/trace/short", "1s")
	traced := brokers.WatchTraced(ctx, c)
	await(t, "it is traced", traced.Changed, func() bool { return traced.Has("short") })
	n := 0
	await(t, "its trace ends", func() <-chan struct{} { return closedAfter(t) }, func() bool {
		n++
		etcd.put(fmt.Sprint("/millrace/test/trace/other", n), "1h")
		return !traced.Has("short")
	})

	// The past of etcd tells whether it is another one, as far as it is there.
	feeds := documents.Of(c, "feeds")
	check(t, putDocument(ctx, feeds, "home", []byte("1")))
	first := etcdtest.Lasting(t, etcd.addr, feeds.Key("home"))[feeds.Key("home")]
	check(t, putDocument(ctx, feeds, "home", []byte("2")))
	second := etcdtest.Lasting(t, etcd.addr, feeds.Key("home"))[feeds.Key("home")]
	k := keyspace.Name{Generation: 1, ID: "a"}
	forked := func(what string, version int64, want bool) {
		t.Helper()
		docs := map[string]documents.Document{"home": {Name: "home", Body: "1", Version: version}}
		if got, err := feeds.ForkedFrom(ctx, docs, keyspace.Origin{Keyspace: k}, &keyspace.Snapshot{Keyspace: k}); err != nil || got != want {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	forked("it was written", first, false)
	forked("it was not written then", first-1, true)
	forked("another was written then", second-1, second-1 != first)
	forked("it is still to come", second+1000, true)
	etcd.raw(func(c *clientv3.Client) error { _, err := c.Compact(ctx, second); return err })
	forked("it cannot be told", first-1, false)

	// A part that is not as the document says is not read.
	watched, err := documents.Watch(ctx, c, "feeds")
	check(t, err)
	check(t, putDocument(ctx, feeds, "big", noise(1, keyspace.MaxDocumentBytes+1)))
	await(t, "it is there", watched.Changed, func() bool { return len(watched.Current()["big"].Body) > 0 })
	whole := watched.Current()["big"].Body
	lines := map[string]string{}
	etcd.raw(func(c *clientv3.Client) error {
		got, err := c.Get(ctx, "/millrace/test/", clientv3.WithPrefix())
		for _, kv := range got.Kvs {
			lines[string(kv.Key)] = string(kv.Value)
		}
		return err
	})
	for _, key := range etcd.partKeys() {
		for value, want := range map[string]string{lines[key] + "x": "is larger than it says", lines[key][1:]: "another checksum than it says"} {
			etcd.put(key, value)
			if !strings.HasSuffix(key, "001") && want == "is larger than it says" {
				want = "" // a later part is, then
			}
			etcd.put(feeds.Key("big"), lines[feeds.Key("big")])
			await(t, "it is told: "+want, watched.Changed, func() bool {
				f := watched.Fault()
				return f != nil && strings.Contains(f.Error(), "cluster: feeds big: ") && strings.Contains(f.Error(), want)
			})
			etcd.put(key, lines[key])
			etcd.put(feeds.Key("big"), lines[feeds.Key("big")])
			await(t, "it is well again", watched.Changed, func() bool { return watched.Fault() == nil })
			if watched.Current()["big"].Body != whole {
				t.Error("the document has changed")
			}
		}
	}
}

// Who steers is refused while etcd has lost state, unless they say that they know, and once
// they do not lead; their own refusal stands, too.
func TestSteersNotWhatIsLost(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1", "n2")))
	feeds, no := documents.Of(c, "feeds"), errors.New("no")
	l := lead(t, c, "a")
	add := func(body string) (string, error) { return body + "x", nil }
	check(t, feeds.ChangeAs(ctx, l, "home", add))
	check(t, steering.Change(ctx, c, l, put("plan", "1")))
	says(t, steering.Change(ctx, c, l, func(*steering.State) error { return no }), no, "")
	says(t, steering.Change(ctx, c, l, put("../x", "1")), nil, "is not an id")
	says(t, steering.Change(ctx, c, l, func(s *steering.State) error { s.Assignment.Wanted = 99; return nil }), nil, "99 replicas are wanted")
	says(t, steering.AssignIf(ctx, c, spreadOver(t, 2, "n1", "n2"), false, func(*steering.State) error { return no }), no, "")
	l.Resign(ctx)
	says(t, feeds.ChangeAs(ctx, l, "home", add), cluster.ErrNotLeader, "")
	says(t, steering.Change(ctx, c, l, put("plan", "2")), cluster.ErrNotLeader, "")

	back, err := json.Marshal(keyspace.Setback{Of: "map", At: 1, When: time.Now().UTC(), Generation: 1})
	check(t, err)
	etcd.put("/millrace/test/setback", string(back))
	says(t, steering.Change(ctx, c, nil, put("plan", "2")), cluster.ErrLost, "etcd has lost state")
	says(t, feeds.Change(ctx, "home", add), cluster.ErrLost, "etcd has lost state")
	agreed := func(*steering.State) error { return nil }
	says(t, steering.AssignIf(ctx, c, spreadOver(t, 2, "n1", "n2"), false, agreed), cluster.ErrLost, "etcd has lost state")
	check(t, steering.AssignIf(ctx, c, spreadOver(t, 2, "n1", "n2"), true, agreed))
	if a, ok, err := steering.Assigned(ctx, c); err != nil || !ok || a.Epoch != 2 {
		t.Errorf("assigned: %d, %v, %v", a.Epoch, ok, err)
	}
	etcdtest.Lose(t, etcd.addr, "/millrace/")
	_, err = steering.Read(ctx, c)
	says(t, err, keyspace.ErrGone, "")
}

// A broker leaves an etcd that it has not reached, or that has given it up, without a word, and
// tells if its registration could not be removed. While it has nothing to tell it writes rarely.
func TestBrokersLeave(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	writer, c := etcd.open(""), etcd.open("")
	leave := brokers.Announce(c, brokers.Broker{Name: "one"}, "")
	awaitBrokers(t, writer, "one")
	times := func() (b brokers.Broker, n int64) {
		etcd.raw(func(c *clientv3.Client) error {
			got, err := c.Get(ctx, "/millrace/test/brokers/", clientv3.WithPrefix())
			if err == nil {
				n, err = got.Kvs[0].Version, json.Unmarshal(got.Kvs[0].Value, &b)
			}
			return err
		})
		return b, n
	}
	began, first := times()
	await(t, "it is written again", func() <-chan struct{} { return closedAfter(t) }, func() bool { b, _ := times(); return b.Told.Sub(began.Told) >= 4*time.Second })
	if _, n := times(); n > first+2 {
		t.Errorf("within one beat it is written %d times", n-first)
	}
	condemned, err := artefacts.WatchCondemned(ctx, c)
	check(t, err)
	etcd.put("/millrace/test/docs/condemned/m", "[]")
	await(t, "it is heard", func() <-chan struct{} { return closedAfter(t) }, func() bool { _, by := condemned.GoesBy(); return by.Revision > 0 && condemned.Revision() > 0 })
	etcdtest.Lose(t, etcd.addr, "/millrace/test/")
	await(t, "it goes by what is lost", func() <-chan struct{} { return closedAfter(t) }, func() bool { _, by := condemned.GoesBy(); return by.Revision == 0 })
	over, cancel := context.WithCancel(ctx)
	cancel()
	says(t, leave(over), cluster.ErrAway, "cluster: leave one: ")

	pipe := startPipe(t, etcd.addr)
	late, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{pipe.addr()}, Name: "test", Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer late.Close()
	pipe.freeze()
	defer pipe.thaw()
	check(t, brokers.Announce(late, brokers.Broker{Name: "two"}, "")(ctx))
}

// What cannot be told of an etcd changes nothing: whether it has another past, which secret is
// the first while it has lost state, and the bytes of a version until it has them.
func TestWhatCannotBeToldIsWaitedFor(t *testing.T) {
	t.Parallel()
	var refuses atomic.Bool
	etcd := &server{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	etcd.judge = func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if r, ok := req.(*etcdserverpb.RangeRequest); ok && r.Revision > 0 && refuses.Load() {
			return nil, status.Error(codes.FailedPrecondition, "refused")
		}
		return handle(ctx, req)
	}
	etcd.start()
	t.Cleanup(etcd.stop)
	ctx, dir := t.Context(), t.TempDir()
	writer, err := artefacts.Watch(ctx, etcd.open(""), "models")
	check(t, err)
	v, _, err := writer.Publish(ctx, "m", "1", []byte("m"), "ann")
	check(t, err)
	check(t, writer.Serve(ctx, v, nil, "ann"))
	etcdtest.Lose(t, etcd.addr, "/millrace/test/bodies/")
	c := etcd.open(dir)
	models, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	if _, err := models.Body(ctx, v); !errors.Is(err, artefacts.ErrNoBytes) {
		t.Errorf("bytes that are gone: %v", err)
	}
	check(t, writer.Upload(ctx, v, []byte("m")))
	await(t, "its bytes are kept", func() <-chan struct{} { return closedAfter(t) }, func() bool {
		_, err := os.Stat(filepath.Join(dir, "bodies-models", v.Sum))
		return err == nil
	})

	feeds, err := documents.Watch(ctx, c, "feeds")
	check(t, err)
	check(t, putDocument(ctx, feeds, "home", []byte("home")))
	await(t, "it is known", feeds.Changed, func() bool { return len(feeds.Current()) == 1 })
	refuses.Store(true)
	check(t, feeds.Delete(ctx, "home"))
	await(t, "it cannot be told whether etcd has another past", feeds.Changed, func() bool { return feeds.Fault() != nil && strings.Contains(feeds.Fault().Error(), "refused") })
	if len(feeds.Current()) != 1 || feeds.ReadAt() == 0 {
		t.Errorf("%v is gone, at %d", feeds.Current(), feeds.ReadAt())
	}
	refuses.Store(false)
	await(t, "it can", feeds.Changed, func() bool { return feeds.Fault() == nil && len(feeds.Current()) == 0 })

	pages, err := secrets.Watch(ctx, c, "pages")
	check(t, err)
	mine := pages.Current()[0].Secret
	etcdtest.Lose(t, etcd.addr, "/millrace/test/")
	await(t, "the loss is noticed", models.Changed, func() bool { return c.Lost() != nil })
	etcd.put("/millrace/test/secrets/pages", strings.Repeat("y", secrets.Size))
	at := etcdtest.Lasting(t, etcd.addr, "/millrace/test/secrets/")["/millrace/test/secrets/pages"]
	await(t, "it is heard", func() <-chan struct{} { return closedAfter(t) }, func() bool { _, by := pages.GoesBy(); return by.Revision >= at })
	if got := pages.Current(); len(got) != 1 || string(got[0].Secret) != string(mine) {
		t.Error("the secret of an etcd that has lost state is taken over")
	}
}
