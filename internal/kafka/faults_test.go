package kafka_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/kafka/streams"
)

// refusing are the answers of a Kafka, in which every code of an error is set in those of
// one kind of request, as if that could not be answered.
type refusing struct {
	mu    sync.Mutex
	key   kmsg.Key // of the requests that are refused; -1: none
	only  int      // the number of the answer that is refused, from 1; 0: all
	did   bool     // an answer was refused
	asked map[kmsg.Key]int
}

// brokers returns a Kafka with the answers of another one.
func (r *refusing) brokers(k kafka.Brokers) kafka.Brokers {
	return k.Through(func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &refusingConn{Conn: conn, r: r, asked: map[uint32][2]int16{}}, nil
	})
}

type refusingConn struct {
	net.Conn
	r     *refusing
	mu    sync.Mutex
	asked map[uint32][2]int16 // key and version of the requests, by their ids
	left  []byte              // of an answer that was read
}

func (c *refusingConn) Write(b []byte) (int, error) { // a request, whole: its length, key, version and id
	key := int16(binary.BigEndian.Uint16(b[4:]))
	c.mu.Lock()
	c.asked[binary.BigEndian.Uint32(b[8:])] = [2]int16{key, int16(binary.BigEndian.Uint16(b[6:]))}
	c.mu.Unlock()
	c.r.mu.Lock()
	c.r.asked[kmsg.Key(key)]++
	c.r.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *refusingConn) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		head := make([]byte, 8) // length and id
		if _, err := io.ReadFull(c.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head)-4)
		if _, err := io.ReadFull(c.Conn, body); err != nil {
			return 0, err
		}
		c.mu.Lock()
		of := c.asked[binary.BigEndian.Uint32(head[4:])]
		c.mu.Unlock()
		c.r.mu.Lock()
		refused := kmsg.Key(of[0]) == c.r.key
		if refused && c.r.only > 0 {
			c.r.only--
			refused = c.r.only == 0
			if refused {
				c.r.key = -1
			}
		}
		c.r.did = c.r.did || refused
		c.r.mu.Unlock()
		if refused {
			resp := kmsg.ResponseForKey(of[0])
			resp.SetVersion(of[1])
			tags := 0
			if resp.IsFlexible() {
				tags = 1
			}
			if err := resp.ReadFrom(body[tags:]); err != nil {
				return 0, err
			}
			refuse(reflect.ValueOf(resp).Elem())
			body = resp.AppendTo(body[:tags:tags])
			binary.BigEndian.PutUint32(head, uint32(4+len(body)))
		}
		c.left = append(head, body...)
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}

// refuse sets every code of an error in an answer.
func refuse(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name == "ErrorCode" {
				v.Field(i).SetInt(int64(kerr.UnknownServerError.Code))
			} else if v.Field(i).CanSet() {
				refuse(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			refuse(v.Index(i))
		}
	}
}

// A question that Kafka refuses to answer is an error of whoever asks, and is not taken for
// an answer that says nothing. Requests of some kinds have others in their place.
func TestWhatKafkaRefusesIsAnError(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx := kafkatest.Deadline(t)
	admin := kafkatest.Admin(t, k.Brokers)
	kafkatest.Write(t, k, k.Content, 0, "a")
	kafkatest.Write(t, k, k.Topics.DeadLetters, 0, "dead")
	kafkatest.Broken(t, k, k.Content, 1, 2, false)
	var done kadm.Offsets
	done.Add(kadm.Offset{Topic: k.Content, Partition: 0, At: 1, LeaderEpoch: -1})
	kafkatest.Must(t, admin.CommitAllOffsets(ctx, "idle", done))
	said, err := progress.Open(progress.Config{Brokers: k.Brokers, Topic: k.Topics.Progress})
	kafkatest.Must(t, err)
	t.Cleanup(said.Close)
	kafkatest.Must(t, said.Introduce(ctx, "idle", "one", []string{k.Content}, nil))
	kafkatest.Write(t, k, k.Topics.Features, 7, "a")
	var refusals atomic.Int64 // a name for each
	end := kafkatest.Begin(t, k, k.Content, map[int32][]byte{2: []byte("open")})
	defer end(kgo.TryAbort)
	look := func(ask func(context.Context, *kafka.Inspector) error) func(context.Context, kafka.Brokers) error {
		return func(ctx context.Context, b kafka.Brokers) error {
			i, err := kafka.NewInspector(b)
			if err != nil {
				return err
			}
			defer i.Close()
			return ask(ctx, i)
		}
	}
	client := func(ask func(context.Context, *kgo.Client) error) func(context.Context, kafka.Brokers) error {
		return func(ctx context.Context, b kafka.Brokers) error {
			cl, err := kafka.NewClient(b, nil)
			if err != nil {
				return err
			}
			defer cl.Close()
			return ask(ctx, cl)
		}
	}
	letters, err := kafka.OpenDeadLetters(ctx, k.Brokers, k.Topics.DeadLetters)
	kafkatest.Must(t, err)
	plan, err := groups.PlanAdoption(ctx, k.Brokers, "idle", k.Topics.Logs())
	kafkatest.Must(t, err)
	var cheap = []kmsg.Key{kmsg.DescribeCluster, kmsg.DescribeTopicPartitions} // Metadata takes their place
	reads := func(ask func(context.Context, *streams.Consumer) error) func(context.Context, kafka.Brokers) error {
		return func(ctx context.Context, b kafka.Brokers) error {
			c, err := streams.NewConsumer(streams.Config{Brokers: b, Topics: k.Topics})
			if err != nil {
				return err
			}
			defer c.Close()
			return ask(ctx, c)
		}
	}
	one := kafka.TopicPartition{Stream: kafka.Features, Partition: 7}
	kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Schemas, "x", nil))
	cases := []struct {
		name string
		ask  func(context.Context, kafka.Brokers) error
		may  []kmsg.Key // may be refused
	}{
		{"ready", func(ctx context.Context, b kafka.Brokers) error { return kafka.WaitReady(ctx, b) }, []kmsg.Key{kmsg.Metadata}},
		{"coordinators", func(ctx context.Context, b kafka.Brokers) error { return kafka.WaitCoordinators(ctx, b) }, []kmsg.Key{kmsg.Metadata}},
		{"topics", func(ctx context.Context, b kafka.Brokers) error {
			_, err := kafka.InspectTopics(ctx, b, k.Topics)
			return err
		}, nil},
		{"partitions", func(ctx context.Context, b kafka.Brokers) error {
			_, err := kafka.Partitions(ctx, b, k.Content)
			return err
		}, nil},
		{"the log", client(func(ctx context.Context, cl *kgo.Client) error {
			_, err := kafka.LogNow(ctx, cl, [2]string{k.Topics.Timeline, k.Topics.Features})
			return err
		}), cheap},
		{"raw bytes", client(func(ctx context.Context, cl *kgo.Client) error {
			_, err := kafka.RawFetch{Topic: k.Content, MaxBytes: 1 << 20}.Do(ctx, cl)
			return err
		}), nil},
		{"ends", look(func(ctx context.Context, i *kafka.Inspector) error { _, err := i.Ends(ctx, k.Content); return err }), nil},
		{"starts", look(func(ctx context.Context, i *kafka.Inspector) error { _, err := i.Starts(ctx, k.Content); return err }), nil},
		{"extent", look(func(ctx context.Context, i *kafka.Inspector) error { _, err := i.Extent(ctx, k.Content); return err }), nil},
		{"lag", look(func(ctx context.Context, i *kafka.Inspector) error {
			_, err := i.Lag(ctx, "idle", k.Content)
			return err
		}), nil},
		{"consumption", look(func(ctx context.Context, i *kafka.Inspector) error {
			_, err := i.Consumption(ctx, k.Content)
			return err
		}), []kmsg.Key{kmsg.DescribeGroups}},
		{"exists", look(func(ctx context.Context, i *kafka.Inspector) error { _, err := i.Exists(ctx, k.Content); return err }), nil},
		{"open transactions", look(func(ctx context.Context, i *kafka.Inspector) error {
			at, err := i.Extent(ctx, k.Content)
			if err != nil {
				return err
			}
			_, err = i.OldestOpen(ctx, at.Hidden(nil))
			return err
		}), []kmsg.Key{kmsg.DescribeTransactions}},
		{"a span", func(ctx context.Context, b kafka.Brokers) error {
			_, err := kafka.OpenTopic(ctx, b, k.Content, 0)
			return err
		}, nil},
		{"dead letters", func(ctx context.Context, b kafka.Brokers) error {
			_, err := kafka.OpenDeadLetters(ctx, b, k.Topics.DeadLetters)
			return err
		}, nil},
		{"dead letters since", func(ctx context.Context, b kafka.Brokers) error {
			_, err := letters.At(b).Since(ctx, 1)
			return err
		}, nil},
		{"a place", func(ctx context.Context, b kafka.Brokers) error {
			_, err := groups.Locate(ctx, b, "idle", &groups.Unreadable{Topic: k.Content, Partition: 1, Err: io.EOF})
			return err
		}, nil},
		{"a holder", func(ctx context.Context, b kafka.Brokers) error {
			_, err := groups.Holder(ctx, b, "idle", "one", "here")
			return err
		}, nil},
		{"a plan", func(ctx context.Context, b kafka.Brokers) error {
			_, err := groups.PlanAdoption(ctx, b, "idle", k.Topics.Logs())
			return err
		}, cheap},
		{"an adoption", func(ctx context.Context, b kafka.Brokers) error { return groups.Adopt(ctx, b, plan, true) }, nil},
		{"offsets", func(ctx context.Context, b kafka.Brokers) error {
			return groups.SetOffsets(ctx, b, groups.Offsets{"idle": {k.Content: {0: 1}}})
		}, nil},
		{"a session", func(ctx context.Context, b kafka.Brokers) error {
			s, err := groups.OpenSession(ctx, groups.SessionConfig{Brokers: b, Group: "busy", Instance: "one", Topics: []string{k.Content}, Outputs: k.Topics.Logs(), DeadLetters: k.Topics.DeadLetters, Logs: k.Topics.Logs()})
			if err == nil {
				err = s.Same(ctx)
				s.Close()
			}
			return err
		}, append(slices.Clone(cheap), kmsg.LeaveGroup, kmsg.Heartbeat, kmsg.Fetch, kmsg.OffsetCommit, kmsg.ListOffsets, kmsg.DescribeProducers)},
		{"ends of the log", reads(func(ctx context.Context, c *streams.Consumer) error { _, err := c.EndOffsets(ctx, one); return err }), nil},
		{"starts of the log", reads(func(ctx context.Context, c *streams.Consumer) error { _, err := c.StartOffsets(ctx, one); return err }), nil},
		{"a time of the log", reads(func(ctx context.Context, c *streams.Consumer) error {
			_, err := c.OffsetsSince(ctx, 1, one)
			return err
		}), nil},
		{"its id", reads(func(ctx context.Context, c *streams.Consumer) error { _, err := c.LogID(ctx); return err }), cheap},
		{"an instant", func(ctx context.Context, b kafka.Brokers) error {
			_, err := streams.At(ctx, b, k.Topics, 1)
			return err
		}, nil},
		{"tails", func(ctx context.Context, b kafka.Brokers) error {
			return streams.ReadTails(ctx, streams.TailsConfig{Brokers: b, Topics: k.Topics}, map[kafka.TopicPartition]streams.Span{one: {To: 1}}, func(f streams.Fetched) error { return f.Err })
		}, []kmsg.Key{kmsg.Fetch, kmsg.OffsetForLeaderEpoch}},
		{"schemas", func(ctx context.Context, b kafka.Brokers) error {
			_, err := schemalog.Known(ctx, b, k.Topics.Schemas)
			return err
		}, append(slices.Clone(cheap), kmsg.Fetch)},
		{"a refused schema", func(ctx context.Context, b kafka.Brokers) error {
			return schemalog.Refuse(ctx, b, k.Topics.Schemas, millrace.Fingerprint(refusals.Add(1)), "ann")
		}, append(slices.Clone(cheap), kmsg.Fetch)},
		{"a record", func(ctx context.Context, b kafka.Brokers) error {
			return follow.Put(ctx, b, k.Topics.Schemas, "y", nil)
		}, nil},
		{"an introduction", func(ctx context.Context, b kafka.Brokers) error {
			l, err := progress.Open(progress.Config{Brokers: b, Topic: k.Topics.Progress})
			if err != nil {
				return err
			}
			defer l.Close()
			return l.Introduce(ctx, fmt.Sprint("group-", refusals.Add(1)), "one", []string{k.Content}, nil)
		}, append(slices.Clone(cheap), kmsg.Fetch, kmsg.Produce)},
		{"a heartbeat", func(ctx context.Context, b kafka.Brokers) error {
			measured := make(chan bool, 9)
			h := groups.NewHeartbeat(groups.HeartbeatConfig{Brokers: b, Progress: said, Group: "idle", Instance: "one", Inputs: []string{k.Content}, Logs: k.Topics.Logs(), Measured: func(p progress.Progress) {
				if p.Topics != nil {
					measured <- true
				}
			}})
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			ended := make(chan bool)
			go func() { defer close(ended); h.Run(ctx) }()
			defer func() { stop(); <-ended }()
			select {
			case <-measured:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, append(slices.Clone(cheap), kmsg.Produce, kmsg.InitProducerID)},
		{"a cut", func(ctx context.Context, b kafka.Brokers) error {
			_, err := groups.TakeCut(ctx, groups.CutConfig{Brokers: b, Topics: k.Topics})
			return err
		}, append(slices.Clone(cheap), kmsg.ListTransactions, kmsg.DescribeTransactions, kmsg.DescribeProducers)},
	}
	t.Run("all", func(t *testing.T) { // ends once all have
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				r := &refusing{key: -1, asked: map[kmsg.Key]int{}}
				kafkatest.Must(t, c.ask(ctx, r.brokers(k.Brokers)))
				r.mu.Lock()
				asked := maps.Clone(r.asked)
				r.mu.Unlock()
				try := func(key kmsg.Key, only int) {
					r.mu.Lock()
					r.key, r.only, r.did = key, only, false
					r.mu.Unlock()
					ctx, stop := context.WithTimeout(ctx, 100*time.Millisecond) // what asks again and again fails then
					defer stop()
					err := c.ask(ctx, r.brokers(k.Brokers))
					r.mu.Lock()
					defer r.mu.Unlock()
					if err == nil && r.did { // what runs beside it may decide what is asked
						t.Errorf("%s: answer %d of %d to %s is refused (0: all are), and that is no error", c.name, only, asked[key], key.Name())
					}
				}
				for key, n := range asked {
					if key == kmsg.ApiVersions || slices.Contains(c.may, key) {
						continue
					}
					try(key, 0)
					if key == kmsg.Metadata || key == kmsg.FindCoordinator || slices.Contains(asksAgain, c.name) { // the client asks these again by itself
						continue
					}
					for only := 1; only <= n && n > 1; only++ {
						try(key, only)
					}
				}
			})
		}
	})
}

// asksAgain are those that ask once more what was refused.
var asksAgain = []string{"ready", "coordinators", "offsets", "a cut", "an introduction", "tails", "schemas", "a refused schema", "a heartbeat", "a session"}
