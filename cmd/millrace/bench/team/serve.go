package team

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/millrace/bench/rig"
)

// Handwritten is a hand-written server, which has the records of a world in memory: of the
// synthetic data that is a function of Entities and Seed.
type Handwritten struct {
	Entities int    // the number of entities in the world
	Seed     uint64 // the seed of the world
	GRPC     bool   // serve by grpc-go; otherwise by frames over plain TCP
}

// Serve runs the server: it makes the index, prints its address to out, and serves until ctx
// or the input ends.
func (h Handwritten) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ix := newIndex(newWorld(h.Entities, 0, h.Seed, false))
	debug.FreeOSMemory() // so that the memory that loading needed does not count as the index's
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	seekers := &sync.Pool{New: func() any { return newSeeker(ix) }}
	if h.GRPC {
		s := grpc.NewServer()
		defer s.Stop()
		feedv1.RegisterFeedServiceServer(s, &grpcServer{seekers: seekers})
		go s.Serve(l)
	} else {
		go serveFrames(l, seekers)
	}
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	return rig.UntilEnd(ctx, in)
}

// grpcServer answers with the messages of the feed API, by grpc-go and protobuf with their
// default settings.
type grpcServer struct {
	feedv1.UnimplementedFeedServiceServer
	seekers *sync.Pool
}

// GetFeed implements feedv1.FeedServiceServer.
func (g *grpcServer) GetFeed(_ context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	s := g.seekers.Get().(*seeker)
	defer g.seekers.Put(s)
	q := question{follows: req.Entities, country: req.Viewer.Attributes["country"].GetStringValue(), freshness: req.Viewer.Features["freshness_hours"]}
	for _, v := range req.Viewer.Attributes["languages"].GetListValue().GetValues() {
		q.reads = append(q.reads, v.GetStringValue())
	}
	if req.Model == models[1].name {
		q.model = 1
	}
	resp := &feedv1.GetFeedResponse{}
	for _, it := range s.answer(&q) {
		i := &feedv1.Item{Id: it.id, Entity: it.author, Type: kinds[it.kind], Time: timestamppb.New(millrace.Time(it.at).Std()), Object: it.object, Score: it.score}
		for _, id := range it.also {
			i.Also = append(i.Also, &feedv1.Also{Id: id})
		}
		resp.Items = append(resp.Items, i)
	}
	return resp, nil
}

// request returns the question as a message of the feed API.
func (q *question) request() *feedv1.GetFeedRequest {
	var reads []*structpb.Value
	for _, l := range q.reads {
		reads = append(reads, structpb.NewStringValue(l))
	}
	return &feedv1.GetFeedRequest{
		Feed: feedName, Model: models[q.model].name, Fields: []string{"id"}, AsOf: timestamppb.New(millrace.Time(asOf).Std()), Entities: q.follows,
		Viewer: &feedv1.Viewer{
			Id: q.viewer,
			Attributes: map[string]*structpb.Value{
				"languages": structpb.NewListValue(&structpb.ListValue{Values: reads}),
				"country":   structpb.NewStringValue(q.country),
			},
			Features: map[string]float64{"freshness_hours": q.freshness},
		},
	}
}

// serveFrames accepts connections until l is closed, and answers the frames of each, one
// after the other.
func serveFrames(l net.Listener, seekers *sync.Pool) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer c.Close()
			if err := answerFrames(c, seekers.Get().(*seeker)); err != nil && !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
}

// answerFrames answers the frames of one connection until it ends, with io.EOF, or fails.
func answerFrames(c net.Conn, s *seeker) error {
	in := bufio.NewReaderSize(c, 64<<10)
	var asked, answer []byte
	for {
		var err error
		if asked, err = readFrame(in, asked[:cap(asked)]); err != nil {
			return err
		}
		f := frame{b: asked}
		q := f.question()
		if f.err != nil {
			return f.err
		}
		answer = appendItems(frameOf(answer), s.answer(&q))
		if err := sendFrame(c, answer); err != nil {
			return err
		}
	}
}
