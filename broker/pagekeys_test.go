package broker

import (
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/cluster/secrets"
)

// ringOf has one key, of always.
func ringOf(secret []byte) *pagetoken.Ring {
	return pagetoken.NewRing(func() []secrets.Generation { return []secrets.Generation{{Secret: secret}} })
}

// secretOf is a secret that differs by its letter.
func secretOf(letter string) []byte { return []byte(strings.Repeat(letter, 32)) }

// Pages that are begun go on by their key for a day after another takes its
// place, and not at all where that stands alone; what begins then is by the new
// one, and by the old one until then.
func TestPageKeysRotate(t *testing.T) {
	for _, alone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1, 1)
			w.fill(rand.New(rand.NewPCG(1, 1)), 20, 200)
			generations := []secrets.Generation{{Secret: secretOf("a")}}
			b, err := New(Config{Maps: w, Dial: w.dial, Log: slog.New(slog.DiscardHandler), PageKeys: func() []secrets.Generation { return generations }})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			req := recentRequest(20)
			req.Limit = proto.Int64(1)
			ask := func(token string) (id, next string, err error) {
				r := proto.Clone(req).(*feedv1.GetFeedRequest)
				r.PageToken = token
				resp, err := b.GetFeed(t.Context(), r)
				if err != nil {
					return "", "", err
				}
				return resp.Items[0].Id, resp.NextPageToken, nil
			}
			by := func(token, letter string) bool {
				_, err := ringOf(secretOf(letter)).Open(token, time.Now())
				return err == nil
			}
			first, token, err := ask("")
			if err != nil || !by(token, "a") {
				t.Fatalf("the first page: %v", err)
			}
			from := time.Now().Add(time.Minute)
			generations = []secrets.Generation{{Secret: secretOf("b"), From: from, Alone: alone}, {Secret: secretOf("a")}}
			if _, early, err := ask(""); err != nil || !by(early, "a") {
				t.Errorf("before it takes its place, the new key signs: %v", err)
			}
			time.Sleep(2 * time.Minute)
			if _, fresh, err := ask(""); err != nil || !by(fresh, "b") {
				t.Errorf("the new key does not sign: %v", err)
			}
			second, third, err := ask(token)
			if alone {
				if e := refusal(t, err); e.Reason != millrace.ReasonPageToken || !strings.Contains(e.Detail, "whose time is over") {
					t.Errorf("a page of a key that is good for nothing: %v", err)
				}
				return
			}
			if err != nil || second == first || !by(third, "a") {
				t.Errorf("a page that was begun before: %v, %v after %v", err, second, first)
			}
			time.Sleep(pagetoken.Life)
			_, err = b.pages.Open(third, time.Now())
			if err == nil || !strings.Contains(err.Error(), "whose time is over") {
				t.Errorf("a day later: %v", err)
			}
		})
	}
}
