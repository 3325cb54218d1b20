package intake

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/memory"
)

// The list is read by hand wherever the path leads, and only there.
func TestJSON(t *testing.T) {
	for text, want := range map[string]struct {
		rest     string
		entities []string
	}{
		`{"feed":"x","request":{"entities":[ "a" , "b\u0041\"" ],"limit":1}}`: {`{"feed":"x","request":{"entities":[],"limit":1}}`, []string{"a", `bA"`}},
		`{"entities":["a"],"request":{"viewer":{"entities":["b"]}}}`:          {`{"entities":["a"],"request":{"viewer":{"entities":["b"]}}}`, nil},
		` {"request":{"entities":[]}} x`:                                      {` {"request":{"entities":[]}} x`, nil},
		`{"request":[{"entities":["a"]}]}`:                                    {`{"request":[{"entities":["a"]}]}`, nil},
		`{"request":{"entities":"a"}}`:                                        {`{"request":{"entities":"a"}}`, nil},
		`7`:                                                                   {`7`, nil},
	} {
		got, err := JSON([]byte(text), "request", "entities")
		if err != nil || string(got.Rest) != want.rest || strings.Join(got.Entities, "|") != strings.Join(want.entities, "|") {
			t.Errorf("%s: %q %q %v", text, got.Rest, got.Entities, err)
		}
	}
	for _, text := range []string{
		``, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,}`, `{a:1}`, `[1,]`, `[`, `"`, `"\`, `{"request":{"entities":["a",]}}`, `{"request":{"entities":[1]}}`, `{"request":{"entities":["\x"]}}`,
		`{"request":{"entities":["\ud800"]}}`, `{"request":{"entities":["a"`, `{"request":{"entities":["a"}}`, strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000),
		"[" + strings.Repeat("1,", MaxValues) + "1]", `{"request":{"entities":[` + strings.Repeat(`"",`, MaxEntities) + `""]}}`, `"` + strings.Repeat("x", MaxRestBytes) + `"`, strings.Repeat(" ", MaxBytes) + "1",
	} {
		var e *millrace.Error
		if _, err := JSON([]byte(text), "request", "entities"); !errors.As(err, &e) || e.WayOut == "" {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

// Whatever the bytes, they are looked at without harm.
func FuzzMessage(f *testing.F) {
	f.Add([]byte{0x0a, 1, 'x', 0x1a, 0, 0x12, 2, 0x12, 0})
	f.Add([]byte{0x0b, 0x0b, 0x0c})
	f.Fuzz(func(t *testing.T, b []byte) {
		cost, err := Message(b, (&feedv1.GetFeedRequest{}).ProtoReflect().Descriptor(), "entities")
		if err == nil && (cost < int64(len(b)) || cost > 2*int64(len(b))+valueBytes*int64(len(b))) {
			t.Errorf("%d bytes cost %d", len(b), cost)
		}
	})
}

// pipes is a listener of connections in memory.
type pipes struct{ accepted chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.accepted
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// The look at a message takes little beside parsing it.
// Who takes back more calls in a second than anyone would who wants answers is
// cut off; who does so over a longer time is not.
func TestCallsThatAreTakenBack(t *testing.T) {
	one := slices.Concat(make([]byte, 3), []byte{frameHeaders, 4, 0, 0, 0, 1}, []byte{0, 0, 4, frameReset, 0, 0, 0, 0, 1, 0, 0, 0, 8})
	for name, c := range map[string]struct {
		each, pause time.Duration // between maxResets calls and as many again
		cut         bool
	}{
		"at once":      {0, 0, true},
		"by and by":    {40 * time.Microsecond, 0, true},
		"taking turns": {0, 1001 * time.Millisecond, false},
		"slowly":       {51 * time.Microsecond, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := pipes{make(chan net.Conn, 1)}
				ours, theirs := net.Pipe()
				l.accepted <- theirs
				conn, _ := Watch(l, memory.New(1<<20, "requests"), time.Hour, time.Hour).Accept()
				ended := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, conn)
					ended <- err
				}()
				_, _ = ours.Write(make([]byte, prefaceBytes))
				for i := range 2 * maxResets {
					if i == maxResets {
						time.Sleep(c.pause)
					}
					time.Sleep(c.each)
					if _, err := ours.Write(one); err != nil {
						break
					}
				}
				_ = ours.Close()
				if err := <-ended; c.cut != errors.Is(err, errTakenBack) {
					t.Errorf("it ended with %v", err)
				}
				_ = conn.Close()
			})
		})
	}
}

func BenchmarkMessage(b *testing.B) {
	req := &feedv1.GetFeedRequest{Feed: "recent"}
	for i := range 1000 {
		req.Entities = append(req.Entities, fmt.Sprint("member:", i))
	}
	message, err := proto.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Message(message, req.ProtoReflect().Descriptor(), "entities"); err != nil {
			b.Fatal(err)
		}
	}
}
