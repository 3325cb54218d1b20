package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// silent is a client of an etcd that nobody listens for.
func silent(t *testing.T) (*Client, *strings.Builder) {
	t.Helper()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	log := &strings.Builder{}
	c := &Client{etcd: etcd, metrics: dial.NewMetrics(), prefix: "/p/", log: slog.New(slog.NewTextHandler(log, nil)), relist: time.Hour, reading: make(chan struct{}, 1)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.unwritten = datadir.NewWriter(c.log, func(do func(context.Context)) { c.Run(func() { do(c.ctx) }) })
	t.Cleanup(func() { _ = c.Close() })
	return c, log
}

// The configuration is checked as a whole.
func TestConfigIsValidated(t *testing.T) {
	for want, c := range map[string]Config{
		"": {Endpoints: []string{"127.0.0.1:1"}, Name: "test"}, "nothing says where etcd is": {Name: "test"}, "is not an id": {Endpoints: []string{"127.0.0.1:1"}, Name: "../x"},
		"connect.etcd": {Endpoints: []string{"etcd:2379"}, Name: "test"},
	} {
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if want == "" {
			continue // it would be waited for
		}
		if _, opened := Open(t.Context(), c); opened == nil || opened.Error() != err.Error() {
			t.Errorf("%q: opened with %v", want, opened)
		}
	}
	if err := (Config{}).Validate(); !strings.Contains(err.Error(), "nothing says") || !strings.Contains(err.Error(), "is not an id") {
		t.Errorf("all faults: %v", err)
	}
}

// Which failures say that nobody answered, and which that a write may have been done.
func TestUnanswered(t *testing.T) {
	c, _ := silent(t)
	for err, want := range map[error]struct{ away, perhaps bool }{
		nil: {}, io.EOF: {}, context.Canceled: {}, rpctypes.ErrGRPCNoSpace: {}, context.DeadlineExceeded: {true, true}, status.Error(codes.Unavailable, "x"): {true, true}, awayError{io.EOF}: {true, true},
	} {
		got, write := c.Unanswered(err), c.PerhapsDone(err)
		if errors.Is(got, ErrAway) != want.away || errors.Is(write, ErrAway) != want.perhaps || strings.Contains(fmt.Sprint(write), "it is not known whether it was done") != want.perhaps || (got == nil) != (err == nil) {
			t.Errorf("%v: %v, %v", err, got, write)
		}
		if c.NoteSilence(err); c.Silent() != want.away || (c.FirstCall() == silentTimeout) != want.away {
			t.Errorf("%v: silent is %v", err, c.Silent())
		}
	}
	if err := Away(io.EOF); !errors.Is(err, ErrAway) || !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "etcd is away: EOF") {
		t.Errorf("%v", err)
	}
	if err := Away(rpctypes.ErrNoSpace); errors.Is(err, ErrAway) || !errors.Is(err, dial.ErrFull) || !strings.HasPrefix(err.Error(), dial.ErrFull.Error()+": ") {
		t.Errorf("%v", err)
	}
	for err, want := range map[error]bool{nil: false, io.EOF: false, ErrAway: true, keyspace.ErrNothing: true, keyspace.ErrBack: true, keyspace.ErrGone: true} {
		if Doubted(err) != want {
			t.Errorf("%v is doubted: %v", err, !want)
		}
	}
	if c.AskTime() != CallTimeout {
		t.Errorf("a person waits for %v", c.AskTime())
	}
	c.wait = time.Hour
	if c.AskTime() != time.Hour || c.Wait() != time.Hour {
		t.Errorf("a person waits for %v", c.AskTime())
	}
}

// A wait for the first answer ends with it, with its context, its time or the client.
func TestAwaitFirst(t *testing.T) {
	of, _ := silent(t)
	synctest.Test(t, func(t *testing.T) {
		c := &Client{wait: time.Minute, etcd: of.etcd}
		c.ctx, c.stop = context.WithCancel(t.Context())
		answered := make(chan struct{})
		began := time.Now()
		if err := c.AwaitFirst(t.Context(), "feeds", answered); !errors.Is(err, ErrAway) || !strings.HasPrefix(err.Error(), "cluster: feeds: ") || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := c.AwaitFirst(ctx, "feeds", answered); errors.Is(err, ErrAway) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		c.wait = 0
		time.AfterFunc(time.Hour, c.stop)
		if err := c.AwaitFirst(t.Context(), "feeds", answered); err == nil || !strings.Contains(err.Error(), "the client is closed") || time.Since(began) < time.Hour {
			t.Errorf("%v", err)
		}
		c.ctx, c.stop = context.WithCancel(t.Context())
		defer c.stop()
		close(answered)
		if err := c.AwaitFirst(t.Context(), "feeds", answered); err != nil {
			t.Errorf("%v", err)
		}
	})
	if err := of.unheard(t.Context(), io.EOF); !strings.HasSuffix(err.Error(), ": EOF") {
		t.Errorf("%v", err)
	}
}

// The acts of a person are recorded in order, each under a key of its own; one of nobody is
// not.
func TestNoted(t *testing.T) {
	c := &Client{prefix: "/p/"}
	if ops, err := c.Noted(audit.Entry{Act: "x"}); err != nil || len(ops) != 0 {
		t.Errorf("of nobody: %v, %v", ops, err)
	}
	c.who = "ann"
	ops, err := c.Noted(audit.Entry{Act: "x"}, audit.Entry{Act: "y", Who: "bob"})
	if err != nil || len(ops) != 2 {
		t.Fatalf("%v, %v", ops, err)
	}
	for i, want := range []string{"ann x", "bob y"} {
		var e audit.Entry
		if err := json.Unmarshal(ops[i].ValueBytes(), &e); err != nil || e.Who+" "+e.Act != want || e.Time.IsZero() || e.Time.Location() != time.UTC || !strings.HasPrefix(string(ops[i].KeyBytes()), "/p/history/") {
			t.Errorf("%s: %s, %v", ops[i].KeyBytes(), ops[i].ValueBytes(), err)
		}
	}
	if string(ops[0].KeyBytes()) >= string(ops[1].KeyBytes()) {
		t.Error("they are not in order")
	}
	if _, err := c.Noted(audit.Entry{Act: strings.Repeat("x", keyspace.MaxDocumentBytes)}); err == nil {
		t.Error("one that is too large is recorded")
	}
	var refused *millrace.Error
	body, _ := json.Marshal(acting{"ann", "restart n1", time.Unix(1e9, 0).UTC()})
	if err := busy(body); !errors.As(err, &refused) || !strings.HasPrefix(refused.Detail, "ann has begun, at 2001-09-09T01:46:40Z: restart n1; ") || !strings.Contains(refused.WayOut, "10 s after") {
		t.Errorf("%v", err)
	}
}

// What processes keep is told by the newest, and the first who keeps bytes.
func TestRaise(t *testing.T) {
	r := Remembered{Newest: map[string]Kept{"feeds": {Revision: 5, By: "a"}}, Bodies: map[string]string{"x": "a"}}
	for _, c := range []struct {
		k      Kept
		bodies []string
		raised bool
	}{{Kept{Revision: 5, By: "b"}, []string{"x"}, false}, {Kept{Revision: 4, By: "b"}, nil, false}, {Kept{Revision: 6, By: "b"}, []string{"x"}, true}, {Kept{Revision: 1, By: "c"}, []string{"x", "y"}, true}} {
		if got := r.raise("feeds", c.k, c.bodies); got != c.raised {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if r.Newest["feeds"] != (Kept{Revision: 6, By: "b"}) || r.Bodies["x"] != "a" || r.Bodies["y"] != "c" {
		t.Errorf("%+v", r)
	}
	r = Remembered{Newest: map[string]Kept{}}
	if !r.raise("map", Kept{Revision: 1, By: "a"}, []string{"z"}) || r.Bodies["z"] != "a" || r.Newest["map"].Revision != 1 {
		t.Errorf("%+v", r)
	}
}

// Who tells others of a loss tries to reach etcd; who has nothing to tell does not.
func TestWhoTellsOfALoss(t *testing.T) {
	first, second := keyspace.Name{Generation: 1, ID: "aaaaaaaa11111111"}, keyspace.Name{Generation: 2, ID: "aaaaaaaa22222222"}
	c, log := silent(t)
	ended, stop := context.WithCancel(t.Context())
	stop()
	origin := keyspace.Origin{Cluster: 1, Revision: 9, Keyspace: first}
	with := func(change func(*keyspace.Origin)) keyspace.Origin { o := origin; change(&o); return o }
	back := with(func(o *keyspace.Origin) { o.Back = 3 })
	for name, x := range map[string]struct {
		s        keyspace.Snapshot
		o        keyspace.Origin
		readOnly bool
		tells    bool
	}{
		"it went back":          {keyspace.Snapshot{Cluster: 1, Keyspace: first}, back, false, true},
		"it did not":            {keyspace.Snapshot{Cluster: 1, Keyspace: first}, origin, false, false},
		"who only reads":        {keyspace.Snapshot{Cluster: 1, Keyspace: first}, back, true, false},
		"a copy":                {keyspace.Snapshot{Cluster: 2, Keyspace: first}, origin, false, true},
		"no cluster is known":   {keyspace.Snapshot{Cluster: 2, Keyspace: first}, with(func(o *keyspace.Origin) { o.Cluster = 0 }), false, false},
		"of another":            {keyspace.Snapshot{Cluster: 2, Keyspace: keyspace.Name{Generation: 1, ID: "b"}}, back, false, false},
		"of before":             {keyspace.Snapshot{Cluster: 1, Keyspace: first}, with(func(o *keyspace.Origin) { o.Keyspace, o.Back = second, 3 }), false, true},
		"without a keyspace":    {keyspace.Snapshot{Cluster: 1}, with(func(o *keyspace.Origin) { o.Keyspace, o.Back = keyspace.Name{}, 3 }), false, false},
		"it is told":            {keyspace.Snapshot{Cluster: 1, Keyspace: first, Setback: &keyspace.Setback{Generation: 1}}, back, false, false},
		"an earlier one is":     {keyspace.Snapshot{Cluster: 1, Keyspace: first, Setback: &keyspace.Setback{Generation: 1}}, with(func(o *keyspace.Origin) { o.Keyspace, o.Back = second, 3 }), false, true},
		"a setback of a backup": {keyspace.Snapshot{Cluster: 1, Keyspace: second, Setback: &keyspace.Setback{Generation: 1}}, with(func(o *keyspace.Origin) { o.Keyspace, o.Back = second, 3 }), false, true},
	} {
		log.Reset()
		c.readOnly = x.readOnly
		c.TellSetback(ended, "map", &x.s, x.o)
		if tried := strings.Contains(log.String(), "that etcd went back is not told to others yet"); tried != x.tells {
			t.Errorf("%s: tells %v", name, tried)
		}
	}
	for name, x := range map[string]struct {
		readOnly bool
		dir      string
		k        Kept
		o        keyspace.Origin
		fault    error
		tells    bool
	}{
		"gone":                {false, "d", Kept{Revision: 3}, origin, keyspace.ErrGone, true},
		"back":                {false, "d", Kept{Revision: 3}, back, keyspace.ErrBack, true},
		"back, say others":    {false, "d", Kept{Revision: 3}, origin, keyspace.ErrBack, false},
		"who only reads":      {true, "d", Kept{Revision: 3}, origin, keyspace.ErrGone, false},
		"without a directory": {false, "", Kept{Revision: 3}, origin, keyspace.ErrGone, false},
		"nothing newer":       {false, "d", Kept{}, origin, keyspace.ErrGone, false},
		"without a keyspace":  {false, "d", Kept{Revision: 3}, keyspace.Origin{}, keyspace.ErrGone, false},
		"nothing is lost":     {false, "d", Kept{Revision: 3}, origin, io.EOF, false},
	} {
		log.Reset()
		c.readOnly, c.dir = x.readOnly, x.dir
		c.TellRemembered(ended, "feeds", x.k, nil, x.o, x.fault)
		if tried := strings.Contains(log.String(), "is not told to others yet"); tried != x.tells {
			t.Errorf("%s: tells %v: %s", name, tried, log)
		}
	}
}

// What watchers hold together is bounded; who holds less than before always may.
func TestHolding(t *testing.T) {
	SetMaxHeld(t, 100)
	var of held
	a, b := &holding{of: &of, what: "a"}, &holding{of: &of, what: "b"}
	a.set(60)
	for bytes, fits := range map[int]bool{0: true, 40: true, 41: false} {
		if err := b.fits(bytes); (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "41 bytes under b, and 60 that this process holds") {
			t.Errorf("%d: %v", bytes, err)
		}
	}
	SetMaxHeld(t, 10)
	if err := a.fits(60); err != nil {
		t.Errorf("what it has: %v", err)
	}
	if err := a.fits(61); err == nil {
		t.Error("more than it has")
	}
	if a.set(5); of.bytes != 5 || a.bytes != 5 {
		t.Errorf("%d held, %d by a", of.bytes, a.bytes)
	}
}

// The newest map is saved, at most once in saveEvery; one without an assignment is not.
func TestKeeper(t *testing.T) {
	a, err := topology.Spread([]millrace.NodeID{"n"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	at := func(epoch int64) *topology.Map { a.Epoch = epoch; return topology.NewMap(a, nil, nil) }
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := &Client{dir: dir}
		c.unwritten = datadir.NewWriter(slog.New(slog.DiscardHandler), nil)
		k := keeper{c: c}
		kept := func() int64 {
			t.Helper()
			m, _, err := topology.LoadMap(dir)
			if errors.Is(err, os.ErrNotExist) {
				return 0
			}
			if err != nil {
				t.Fatal(err)
			}
			return m.Epoch()
		}
		k.save(t.Context(), topology.NewMap(topology.Assignment{}, nil, nil), keyspace.Origin{})
		if kept() != 0 {
			t.Error("a map without an assignment is kept")
		}
		for epoch := range int64(3) {
			k.save(t.Context(), at(epoch+1), keyspace.Origin{})
		}
		if kept() != 1 {
			t.Errorf("epoch %d is kept at once", kept())
		}
		time.Sleep(saveEvery)
		synctest.Wait()
		if kept() != 3 {
			t.Errorf("epoch %d is kept later", kept())
		}
		time.Sleep(2 * saveEvery)
		synctest.Wait()
		if k.save(t.Context(), at(4), keyspace.Origin{}); kept() != 4 {
			t.Errorf("epoch %d is kept after a rest", kept())
		}
		c.wg.Wait()
	})
}

// A claim may be over once its lease has ended, or nothing was heard of it for as long as it
// lasts.
func TestClaimsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(alive chan *clientv3.LeaseKeepAliveResponse, stop func()){
			"nothing is heard": func(chan *clientv3.LeaseKeepAliveResponse, func()) { time.Sleep(LeaseSeconds * time.Second) },
			"its lease ends":   func(alive chan *clientv3.LeaseKeepAliveResponse, _ func()) { close(alive) },
			"the client ends":  func(_ chan *clientv3.LeaseKeepAliveResponse, stop func()) { stop() },
		} {
			ctx, stop := context.WithCancel(t.Context())
			h := &claim{lost: make(chan struct{}), stop: stop, key: "k", revision: 7}
			alive := make(chan *clientv3.LeaseKeepAliveResponse)
			go h.keep(ctx, alive)
			for range 3 {
				time.Sleep(LeaseSeconds*time.Second - 1)
				alive <- nil
			}
			synctest.Wait()
			select {
			case <-h.lost:
				t.Errorf("%s: it is lost while its lease lives", name)
			default:
			}
			end(alive, stop)
			synctest.Wait()
			select {
			case <-h.lost:
			default:
				t.Errorf("%s: it is not lost", name)
			}
			stop()
		}
	})
	l := &Lead{&claim{revision: 7}}
	for _, kvs := range [][]*mvccpb.KeyValue{nil, {{CreateRevision: 6}}, {{CreateRevision: 7}}} {
		if got := l.Is(kvs); got != (len(kvs) > 0 && kvs[0].CreateRevision == 7) {
			t.Errorf("%v: %v", kvs, got)
		}
	}
}

// What a client has written is told with the newest revision of each, and what it remembers as
// it was noted.
func TestWhatAClientNotes(t *testing.T) {
	c := &Client{}
	if len(c.Written()) != 0 || c.Memory() != (keyspace.Memory{}) {
		t.Error("a client that did nothing has written or remembers")
	}
	c.NoteWritten("feeds", "home", 3)
	c.NoteWritten("feeds", "home", 5)
	c.NoteWritten("models", "home", 4)
	all := c.Written()
	slices.SortFunc(all, func(a, b Written) int { return strings.Compare(a.Kind, b.Kind) })
	if !slices.Equal(all, []Written{{"feeds", "home", 5}, {"models", "home", 4}}) {
		t.Errorf("%+v", all)
	}
	c.remember(keyspace.Origin{}, 3)
	if c.Memory() != (keyspace.Memory{Epoch: 3}) {
		t.Errorf("%+v", c.Memory())
	}
	c.remember(keyspace.Origin{Keyspace: keyspace.Name{Generation: 2, ID: "b"}}, 4)
	if c.Memory() != (keyspace.Memory{Keyspace: "2 b", Epoch: 4}) {
		t.Errorf("%+v", c.Memory())
	}
	err := Refuse(io.EOF, millrace.ReasonInvalid, "field", "way out", "detail %d", 7)
	var e *millrace.Error
	if !errors.Is(err, io.EOF) || !errors.As(err, &e) || e.Field != "field" || e.Detail != "detail 7" || e.WayOut != "way out" || err.Error() != e.Error() {
		t.Errorf("%v", err)
	}
}

// Alarms are in the metrics, the longest of each name, until they are removed or their context
// ends; one of a lost past is an ErrLost.
func TestAlarms(t *testing.T) {
	c, _ := silent(t)
	now := time.Now()
	fault := func(ago time.Duration, why error) func() (time.Time, error) {
		return func() (time.Time, error) { return now.Add(-ago), why }
	}
	ctx, stop := context.WithCancel(t.Context())
	c.Alarm(t.Context(), "a", fault(time.Hour, io.EOF))
	remove := c.Alarm(t.Context(), "a", fault(2*time.Hour, io.EOF))
	c.Alarm(t.Context(), "a", fault(9*time.Hour, nil))
	c.Alarm(ctx, "b", fault(time.Hour, keyspace.ErrGone))
	file := filepath.Join(t.TempDir(), "f")
	c.BeginFromDisk("c", file)
	told := func() map[string]float64 {
		t.Helper()
		reg := prometheus.NewRegistry()
		reg.MustRegister(c)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				name := strings.TrimPrefix(f.GetName(), "millrace_cluster_")
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				all[name] = gauge(m)
			}
		}
		return all
	}
	got := told()
	if a := got["fault_seconds a"]; a < 7200 || a > 8000 {
		t.Errorf("a for %v s", a)
	}
	if _, ok := got["unwritten_seconds"]; !ok || got["fault_seconds b"] < 3600 {
		t.Errorf("%v", got)
	}
	if err := c.Lost(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "b: cluster: etcd holds nothing") {
		t.Errorf("%v", err)
	}
	stop()
	remove()
	for range 1000 { // the context's end is told by another goroutine
		if got = told(); len(c.alarms.now()) == 2 {
			break
		}
	}
	if a := got["fault_seconds a"]; a < 3600 || a > 4000 {
		t.Errorf("a for %v s, of %v", a, got)
	}
	if _, ok := got["fault_seconds b"]; ok || c.Lost() != nil {
		t.Errorf("b is still told: %v, %v", got, c.Lost())
	}
}

func gauge(m *dto.Metric) float64 { return m.GetGauge().GetValue() }

// A watcher takes over what is good of a snapshot, and tells each fault once.
func TestWatcherApplies(t *testing.T) {
	a, err := topology.Spread([]millrace.NodeID{"n"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	a.AllowUnknown = true
	var log strings.Builder
	w := &Watcher{state: keyspace.NewLatest(topology.NewMap(topology.Assignment{}, nil, nil)), log: slog.New(slog.NewTextHandler(&log, nil))}
	at := func(revision int64, count string) *keyspace.Snapshot {
		body, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		return &keyspace.Snapshot{Cluster: 1, Revision: revision, Count: count, Keyspace: keyspace.Name{Generation: 1, ID: "a"}, Values: map[string]keyspace.Value{"assignment": {Data: body}}}
	}
	for i, c := range []struct {
		s     *keyspace.Snapshot
		fault error
		epoch int64
		want  error  // the watcher's fault
		log   string // what is logged
		tells bool
	}{
		{nil, ErrAway, 0, ErrAway, "level=ERROR msg=\"serving the last good map\" epoch=0", true},
		{nil, ErrAway, 0, ErrAway, "", false},
		{at(5, "720"), nil, 1, nil, "level=INFO msg=\"etcd is well again\" epoch=1", true},
		{at(6, "720"), nil, 1, nil, "", false},
		{at(7, "64"), nil, 1, keyspace.ErrPartitions, "level=ERROR", true},
		{at(8, "720"), nil, 1, nil, "level=INFO", true},
		{at(2, "720"), nil, 1, keyspace.ErrBack, "level=ERROR", true},
	} {
		log.Reset()
		changed := w.Changed()
		w.apply(c.s, c.fault)
		told := false
		select {
		case <-changed:
			told = true
		default:
		}
		if w.Current().Epoch() != c.epoch || !errors.Is(w.Fault(), c.want) || c.want == nil && w.Fault() != nil || told != c.tells || (log.Len() > 0) != (c.log != "") || !strings.Contains(log.String(), c.log) {
			t.Errorf("%d: epoch %d, %v, told %v, %s", i, w.Current().Epoch(), w.Fault(), told, &log)
		}
	}
}
