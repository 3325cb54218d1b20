package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// follower is a broker, as far as it follows etcd.
type follower struct {
	*testing.T
	client *cluster.Client
	feeds  *artefacts.Kind
	leave  func(context.Context) error
}

// startFollower starts one that takes over which feeds serve when take is called.
func startFollower(t *testing.T, addr, name, instance string) *follower {
	t.Helper()
	c, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{addr}, Name: "test", Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	c.SetRelist(200 * time.Millisecond)
	t.Cleanup(func() { _ = c.Close() })
	f := &follower{T: t, client: c}
	f.feeds, err = artefacts.Watch(t.Context(), c, "definitions")
	check(t, err)
	models, err := artefacts.Watch(t.Context(), c, "models")
	check(t, err)
	failed, err := artefacts.WatchCondemned(t.Context(), c)
	check(t, err)
	pages, err := secrets.Watch(t.Context(), c, "pages")
	check(t, err)
	f.take()
	f.leave = brokers.Announce(c, brokers.Broker{Name: name, Addr: name + ":9090", Admin: name + ":6060", Version: "v1"}, instance, f.feeds, models, failed, pages, brokers.WatchTraced(t.Context(), c))
	return f
}

func (f *follower) take() { f.feeds.Use(f.feeds.Serving()) }

// takes has a broker take over what serves until stop.
func (f *follower) takes() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			changed := f.feeds.Changed()
			f.take()
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}()
	return func() { cancel(); <-done }
}

// said is each broker with what it does not go by.
func said(all []brokers.Hearer) string {
	var each []string
	for _, h := range all {
		text := h.Name
		for _, b := range h.Behind {
			text += fmt.Sprintf(" %s/%s:%v", b.Kind, b.Name, b.Heard)
		}
		each = append(each, text)
	}
	return strings.Join(each, ", ")
}

// awaitSaid asks until brokers say what they should, which a busy machine may keep them
// from for longer than who asks waits.
func awaitSaid(t *testing.T, what, want string, ask func() ([]brokers.Hearer, error)) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		all, err := ask()
		if got := said(all); err == nil && got == want {
			return
		} else if time.Now().After(end) {
			t.Fatalf("%s: %q, %v; want %q", what, got, err, want)
		}
	}
}

// awaitBrokers waits until brokers are registered.
func awaitBrokers(t *testing.T, c *cluster.Client, want string) {
	t.Helper()
	awaitSaid(t, "registered", want, func() ([]brokers.Hearer, error) { return brokers.Heard(t.Context(), c, nil) })
}

// Who changes something is told which brokers go by it: not one that has lost etcd,
// nor one that could not take it over; and nobody waits for one that has stopped.
func TestBrokersSayWhatTheyGoBy(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	way := startPipe(t, etcd.addr)
	writer := etcd.open("")
	feeds, err := artefacts.Watch(t.Context(), writer, "definitions")
	check(t, err)
	heard := func(what, want string) {
		t.Helper()
		awaitSaid(t, what, want, func() ([]brokers.Hearer, error) { return brokers.Heard(t.Context(), writer, writer.Written()) })
	}
	everything := func(what, want string) {
		t.Helper()
		awaitSaid(t, what, want, func() ([]brokers.Hearer, error) { return brokers.All(t.Context(), writer) })
	}
	n := 0
	define := func() {
		t.Helper()
		n++
		v, _, err := feeds.Publish(t.Context(), "news", "", fmt.Append(nil, n), "ann")
		check(t, err)
		if w := writer.Written(); n == 1 && len(w) > 0 {
			t.Errorf("what does not serve is told: %v", w)
		}
		check(t, feeds.Serve(t.Context(), v, nil, "ann"))
	}
	define()
	heard("nobody", "")

	one, two := startFollower(t, etcd.addr, "one", ""), startFollower(t, way.addr(), "two", "")
	awaitBrokers(t, writer, "one, two")
	stop, stopTwo := one.takes(), two.takes()
	defer stopTwo()
	heard("what was there before them", "one, two")
	define()
	heard("a change", "one, two")
	stop()
	define()
	heard("one that does not take it over", "one definitions/news:true, two")
	one.take()
	heard("it has", "one, two")
	defer one.takes()()

	models, err := artefacts.Watch(t.Context(), writer, "models")
	check(t, err)
	failed, err := artefacts.WatchCondemned(t.Context(), writer)
	check(t, err)
	v, _, err := models.Publish(t.Context(), "likes", "1", []byte("1"), "ann")
	check(t, err)
	check(t, failed.Condemn(t.Context(), models, v, "it panicked", "n1", time.Now()))
	check(t, failed.Release(t.Context(), models, v, "ann"))
	check(t, secrets.Rotate(t.Context(), writer, "pages", secrets.Generation{From: time.Now().Truncate(time.Millisecond), Alone: true}, time.Time{}))
	_, err = brokers.Trace(t.Context(), writer, "member:1", time.Hour)
	check(t, err)
	check(t, brokers.Untrace(t.Context(), writer, "member:1"))
	var kinds []string
	for _, w := range writer.Written() {
		kinds = append(kinds, w.Kind+"/"+w.Name)
	}
	slices.Sort(kinds)
	if got := strings.Join(kinds, " "); got != "condemned/likes definitions/news secrets/pages trace/member:1" {
		t.Errorf("changed: %s", got)
	}
	heard("all kinds", "one, two")
	everything("all that there is", "one, two")
	all, err := brokers.All(t.Context(), writer)
	check(t, err)
	if b := all[1].Broker; b.Addr != "two:9090" || b.Admin != "two:6060" || b.Version != "v1" || b.Silent(time.Now()) > 0 || b.Silent(b.Told.Add(3*time.Minute)) != 3*time.Minute {
		t.Errorf("%+v", b)
	}

	way.freeze()
	define()
	heard("one is cut off", "one, two definitions/news:false")
	check(t, secrets.Rotate(t.Context(), writer, "pages", secrets.Generation{From: time.Now().Truncate(time.Millisecond), Alone: true}, time.Time{}))
	everything("one is cut off", "one, two definitions/:false secrets/:false")
	// What is as it was when the broker hears again has changed all the same.
	check(t, failed.Condemn(t.Context(), models, v, "it panicked again", "n1", time.Now()))
	check(t, failed.Release(t.Context(), models, v, "ann"))
	way.thaw()
	heard("both hear again", "one, two")
	everything("both hear again", "one, two")
	check(t, two.leave(t.Context()))
	heard("one has stopped", "one")
	etcd.raw(func(c *clientv3.Client) error {
		_, err := c.Put(t.Context(), "/millrace/test/docs/models/likes", "{")
		return err
	})
	everything("what cannot be read", "one models/:true")
}

// A broker that starts again in its data directory is the same one; another of its
// name is another, and so is one of a copy of the directory under its own name. What is no word of a broker is nobody's.
func TestBrokersByInstance(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	writer := etcd.open("")
	startFollower(t, etcd.addr, "one", "word")
	awaitBrokers(t, writer, "one")
	again := startFollower(t, etcd.addr, "one", "word")
	startFollower(t, etcd.addr, "one", "other")
	startFollower(t, etcd.addr, "two", "word")
	awaitBrokers(t, writer, "one, one, two")
	etcd.raw(func(c *clientv3.Client) error {
		for key, value := range map[string]string{"a": "{", "b": `{"name":""}`, "c": `{"name":"` + strings.Repeat("x", 65<<10) + `"}`, "d": `{"name":"b\nroker"}`} {
			if _, err := c.Put(t.Context(), "/millrace/test/brokers/"+key, value); err != nil {
				return err
			}
		}
		return nil
	})
	awaitBrokers(t, writer, `b\u000aroker, one, one, two`)
	check(t, again.leave(t.Context()))
}

// An etcd that lost everything is told again which brokers there are.
func TestBrokersRegisterAgain(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	startFollower(t, etcd.addr, "one", "")
	awaitBrokers(t, etcd.open(""), "one")
	etcd.stop()
	etcd.empty()
	etcd.start()
	awaitBrokers(t, etcd.open(""), "one")
}

// A user who may read and write what is a cluster's may do so of its brokers.
func TestBrokersOfASecuredEtcd(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	s := etcdtest.Start(t, a)
	c, err := openAs(t, s, dial.Access{TLS: s.Me, Login: secure.Login{Username: "millrace", PasswordFile: s.PasswordFile("old")}}, "")
	check(t, err)
	leave := brokers.Announce(c, brokers.Broker{Name: "one"}, "")
	awaitBrokers(t, c, "one")
	check(t, leave(t.Context()))
	awaitBrokers(t, c, "")
}
