//go:build linux

package campaign

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/client"
)

// callers is a process that asks brokers and tells how long each answer took. In
// this one answers are judged, which takes a processor and has garbage collected:
// how long questions take would be its doing as much as the cluster's.
type callers struct {
	mu struct {
		sync.Mutex
		to      *gob.Encoder
		n       uint64
		waiting map[uint64]chan<- reply
		ended   bool
	}
}

// call is a question, of that process.
type call struct {
	N       uint64
	Broker  int
	Request []byte
	Within  time.Duration
}

// reply is what became of a call.
type reply struct {
	N        uint64
	Response []byte
	Fault    string // why there is none
	Took     time.Duration
}

// askedBrokers is the variable of the environment that has the test binary be that
// process, for brokers at these addresses.
const askedBrokers = "MILLRACE_CAMPAIGN_ASKS"

// startCallers starts the process, for as long as the test lasts.
func startCallers(t *testing.T, brokers []string) *callers {
	t.Helper()
	c := &callers{}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), askedBrokers+"="+strings.Join(brokers, ","))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := startForLife(cmd); err != nil {
		t.Fatal(err)
	}
	c.mu.to, c.mu.waiting = gob.NewEncoder(in), map[uint64]chan<- reply{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.hear(out)
	}()
	t.Cleanup(func() {
		_ = in.Close() // which ends it
		<-done
		if err := cmd.Wait(); err != nil {
			t.Errorf("the process that asks: %v", err)
		}
	})
	return c
}

// hear hands out replies until the process has ended.
func (c *callers) hear(from io.Reader) {
	replies := gob.NewDecoder(bufio.NewReader(from))
	for {
		var r reply
		err := replies.Decode(&r)
		c.mu.Lock()
		if err != nil {
			c.mu.ended = true
			for n, to := range c.mu.waiting {
				to <- reply{N: n, Fault: "the process that asks has ended"}
			}
			c.mu.Unlock()
			return
		}
		to := c.mu.waiting[r.N]
		delete(c.mu.waiting, r.N)
		c.mu.Unlock()
		to <- r
	}
}

// ask has a broker asked, and returns how long that took.
func (c *callers) ask(ctx context.Context, broker int, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, time.Duration, error) {
	body, err := proto.Marshal(req)
	if err != nil {
		return nil, 0, err
	}
	replied := make(chan reply, 1)
	c.mu.Lock()
	c.mu.n++
	err = errors.New("the process that asks has ended")
	if !c.mu.ended {
		c.mu.waiting[c.mu.n] = replied
		err = c.mu.to.Encode(call{c.mu.n, broker, body, askWithin})
	}
	c.mu.Unlock()
	if err != nil {
		return nil, 0, err
	}
	select {
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	case r := <-replied:
		resp := new(feedv1.GetFeedResponse)
		if r.Fault != "" {
			return nil, r.Took, errors.New(r.Fault)
		}
		return resp, r.Took, proto.Unmarshal(r.Response, resp)
	}
}

// serveCalls is that process: it makes the calls that it reads, all at once, until
// there are none any more.
func serveCalls(in io.Reader, out io.Writer, brokers []string) error {
	var clients []*client.Client
	for _, addr := range brokers {
		c, err := client.Dial(addr)
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	var mu sync.Mutex
	calls, replies := gob.NewDecoder(bufio.NewReader(in)), gob.NewEncoder(out)
	for {
		var c call
		switch err := calls.Decode(&c); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("a call: %w", err)
		}
		go func() {
			r := c.make(clients[c.Broker])
			mu.Lock()
			defer mu.Unlock()
			_ = replies.Encode(r) // who does not hear it has ended, and so does in
		}()
	}
}

func (c *call) make(broker *client.Client) reply {
	r, req := reply{N: c.N}, new(feedv1.GetFeedRequest)
	err := proto.Unmarshal(c.Request, req)
	began := time.Now()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), c.Within)
		defer cancel()
		var resp *feedv1.GetFeedResponse
		resp, err = broker.GetFeed(ctx, req)
		r.Took = time.Since(began)
		if err == nil {
			r.Response, err = proto.Marshal(resp)
		}
	}
	if err != nil {
		r.Fault = err.Error()
	}
	return r
}
