package broker

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/api/millrace/feed/v1/feedv1connect"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/race"
)

// The processor time that the broker of TestFuzzDoors has is MILLRACE_DOORS,
// such as 1h: make fuzz-doors DURATION=1h.
const (
	doorsTime   = "MILLRACE_DOORS"
	doorsSeed   = "MILLRACE_DOORS_SEED"
	doorsServer = "MILLRACE_DOORS_SERVER" // in the process that is the broker: what its nodes have
	doorsMemory = 512 << 20
	doorsConns  = 600
)

// TestFuzzDoors sends a broker in a process of its own whatever comes to mind
// by JSON and by gRPC, from many connections at a time. The process must not
// end, nor take more memory than it may, and must answer what is in order all
// the while.
func TestFuzzDoors(t *testing.T) {
	if os.Getenv(doorsServer) != "" {
		serveDoors(t)
		return
	}
	if race.Enabled {
		t.Skip("the race detector takes many times the memory that the broker may; `make test` runs this without it")
	}
	want, err := time.ParseDuration(cmp.Or(os.Getenv(doorsTime), "2s"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv(doorsSeed), fmt.Sprint(time.Now().UnixNano())), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s=%d", doorsSeed, seed)
	server := startDoors(t, "nothing")
	ctx, stop := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	bodies, messages := hostileBodies(), hostileMessages()
	for i := range uint64(8) {
		f := &fuzzer{rand.New(rand.NewPCG(seed, i)), server.http, server.grpc, bodies, messages}
		senders.Go(func() { f.run(ctx) })
	}
	probes, refused := 0, 0
	for used := time.Duration(0); used < want; used = server.processorTime(t) {
		select {
		case err := <-server.ended:
			t.Fatalf("the broker's process has ended: %v\n%s", err, server.said())
		case <-time.After(100 * time.Millisecond):
		}
		if most := server.mostMemory(t); most > doorsMemory {
			t.Fatalf("it took %d MiB", most>>20)
		}
		if err := server.probe(ctx); err != nil {
			refused++
		}
		probes++
	}
	stop()
	senders.Wait()
	waitFor(t, "an answer in the end", func() bool { return server.probe(t.Context()) == nil })
	t.Logf("%s of a processor, at most %d MiB, %d of %d probes refused", server.processorTime(t).Round(time.Second), server.mostMemory(t)>>20, refused, probes)
}

// serveDoors is the broker's process: real doors, and nodes that have nothing,
// or much for everyone.
func serveDoors(t *testing.T) {
	limit := syscall.Rlimit{Cur: doorsMemory + 64<<20, Max: doorsMemory + 64<<20}
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &limit); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, 2, 2)
	b, err := New(Config{
		Maps: w, Log: slog.New(slog.DiscardHandler), RequestMemory: minRequestMemory,
		Dial: func(n topology.Node) (fanout.Node, error) {
			empty := emptyNode{w.nodes[n.ID].hosted}
			if os.Getenv(doorsServer) == "much" {
				return muchNode{empty}, nil
			}
			return empty, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.ArriveWithin, b.TakenWithin = 2*time.Second, 2*time.Second
	listen := func(refusal string) net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return door.New(l, door.Config{Conns: doorsConns, Refusal: refusal})
	}
	go func() { // the end of who started it is its own
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	byHTTP, byGRPC := listen(door.RefusalHTTP), listen("")
	server := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(server)
	go func() { _ = admin.ServeBy(context.Background(), byHTTP, b.HTTPServer(), 0) }()
	fmt.Printf("doors %s %s\n", byHTTP.Addr(), byGRPC.Addr())
	_ = server.Serve(b.Guard(byGRPC))
}

// emptyNode hosts partitions of which no timeline has a record.
type emptyNode struct{ hosted topology.Set }

func (n emptyNode) Query(_ context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	answered := &nodev1.Partitions{}
	for b := req.Entities; len(b) > 0; b = b[partition.EntityHead+int(binary.LittleEndian.Uint16(b[2:])):] {
		if p := int32(binary.LittleEndian.Uint16(b)); !slices.Contains(answered.Answered, p) {
			answered.Answered = append(answered.Answered, p)
		}
	}
	answered.AppliedContent, answered.AppliedFeatures = make([]int64, len(answered.Answered)), make([]int64, len(answered.Answered))
	return &nodev1.QueryResponse{Model: req.Model, ModelVersion: "1", Partitions: answered, UnknownTypes: req.Types}, nil
}

func (emptyNode) GetSchema(context.Context, *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	return nil, io.EOF
}

func (emptyNode) Ping(context.Context) error { return nil }

// doorsProcess is the process of serveDoors.
type doorsProcess struct {
	pid        int
	http, grpc string
	ended      chan error
	mu         sync.Mutex
	out        bytes.Buffer
}

func startDoors(t *testing.T, nodes string) *doorsProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestFuzzDoors$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), doorsServer+"="+nodes, "GOMEMLIMIT=384MiB", "GOGC=50")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &doorsProcess{ended: make(chan error, 1)}
	cmd.Stderr = p
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	p.pid = cmd.Process.Pid
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if n, _ := fmt.Sscanf(lines.Text(), "doors %s %s", &p.http, &p.grpc); n == 2 {
			break
		}
		_, _ = p.Write(append(lines.Bytes(), '\n'))
	}
	if p.grpc == "" {
		t.Fatalf("the broker does not start: %s", p.said())
	}
	go func() {
		_, _ = io.Copy(p, out)
		p.ended <- cmd.Wait()
	}()
	return p
}

// Write keeps the beginning of what the process says.
func (p *doorsProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Write(b[:min(len(b), max(0, 20_000-p.out.Len()))])
	return len(b), nil
}

func (p *doorsProcess) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func (p *doorsProcess) processorTime(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		t.Fatalf("%v\n%s", err, p.said())
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, _ := strconv.ParseInt(f, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func (p *doorsProcess) mostMemory(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		t.Fatalf("%v\n%s", err, p.said())
	}
	for _, name := range []string{"VmHWM:", "VmRSS:"} {
		if _, after, ok := strings.Cut(string(status), name); ok {
			kib, _ := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
			return kib << 10
		}
	}
	t.Fatal("the system does not tell how much memory a process takes")
	return 0
}

// probe asks for what is in order.
func (p *doorsProcess) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.http+"/v1/feed", strings.NewReader(`{"feed":"recent","entities":["a"]}`))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != 200 {
		return fmt.Errorf("%s", resp.Status)
	}
	return nil
}

// fuzzer sends what comes to mind.
type fuzzer struct {
	*rand.Rand
	http, grpc string
	bodies     map[string]string
	messages   map[string][]byte
}

func (f *fuzzer) run(ctx context.Context) {
	for ctx.Err() == nil {
		switch f.IntN(20) {
		case 0:
			f.crowd(ctx)
		case 1:
			f.halves(ctx)
		case 2, 3, 4, 5, 6, 7:
			f.frames(ctx)
		default:
			f.post(ctx)
		}
	}
}

func pickOf[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// post sends a body, perhaps as another kind than it is.
func (f *fuzzer) post(ctx context.Context) {
	path := pickOf(f.Rand, "/v1/feed", "/v1/feed", "/v1/why", feedv1connect.FeedServiceGetFeedProcedure, feedv1connect.FeedServiceWhyProcedure, "/v1/openapi.json", "/")
	kind := pickOf(f.Rand, "application/json", "application/json", "application/proto", "application/grpc-web+proto", "application/grpc+proto", "application/connect+json", "")
	var body []byte
	if strings.Contains(kind, "proto") {
		body = f.message()
		if strings.Contains(kind, "grpc") {
			body = envelope(body)
		}
	} else {
		body = f.json()
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, pickOf(f.Rand, "POST", "POST", "POST", "POST", "PUT", "GET"), "http://"+f.http+path, bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", kind)
	for name, values := range map[string][]string{
		admission.TimeoutHeader: {"", "", "1ms", "1s", "-1s", "x"}, admission.PriorityHeader: {"", "prefetch", "x"}, admission.CallerHeader: {"", strings.Repeat("c", 5000)}, "Content-Encoding": {"", "", "", "gzip"}, "Connect-Protocol-Version": {"", "1"},
	} {
		if v := pickOf(f.Rand, values...); v != "" {
			req.Header.Set(name, v)
		}
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func envelope(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// json is a request, or nearly.
func (f *fuzzer) json() []byte {
	good := `{"feed":"recent","viewer":{"id":"v","attributes":{"a":[1,2,"x"],"b":true},"features":{"f":1.5}},"entities":["a","b","c"],"types":["post"],"filter":"record.x == 1","limit":5,"explain":true,"as_of":"2026-01-01T00:00:00Z"}`
	bodies := f.bodies
	text := pickOf(f.Rand, good, good, good, `{"record":"r","request":`+good+`}`)
	if f.IntN(3) == 0 {
		names := slices.Sorted(maps.Keys(bodies))
		text = bodies[pickOf(f.Rand, names...)]
		text = text[:f.IntN(len(text))>>f.IntN(12)]
		if f.IntN(2) == 0 {
			text += pickOf(f.Rand, `]}`, `"]}`, `]}}}`, `}}}`)
		}
	}
	return f.spoil([]byte(text))
}

// message is a request in protobuf, or nearly.
func (f *fuzzer) message() []byte {
	b, err := proto.Marshal(&feedv1.GetFeedRequest{Feed: "recent", Entities: entityNames(f.IntN(50)), Filter: "true", Types: []string{"post"}})
	if err != nil {
		panic(err)
	}
	if f.IntN(3) == 0 {
		all := f.messages
		b = all[pickOf(f.Rand, slices.Sorted(maps.Keys(all))...)]
		b = bytes.Clone(b[:f.IntN(len(b))>>f.IntN(12)])
	}
	return f.spoil(b)
}

// spoil changes a few bytes, mostly none.
func (f *fuzzer) spoil(b []byte) []byte {
	for range max(0, f.IntN(8)-4) {
		if len(b) == 0 {
			return b
		}
		at := f.IntN(len(b))
		switch f.IntN(4) {
		case 0:
			b[at] = byte(f.Uint32())
		case 1:
			b = slices.Delete(b, at, min(len(b), at+f.IntN(20)))
		case 2:
			b = slices.Insert(b, at, b[at:min(len(b), at+f.IntN(200))]...)
		case 3:
			b[at] = pickOf(f.Rand, []byte(`"[]{},:\/`)...)
		}
	}
	return b
}

// frames sends HTTP/2 by hand: calls that end, are taken back, or stay open.
func (f *fuzzer) frames(ctx context.Context) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", f.grpc)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	_, _ = conn.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), http2Frame(4, 0, 0, nil)...))
	stream := uint32(1)
	for range f.IntN(60) {
		if ctx.Err() != nil {
			return
		}
		framed{conn}.call(stream, byte(f.IntN(20)/19))
		if f.IntN(10) == 0 {
			_, _ = conn.Write(http2Frame(byte(f.IntN(12)), byte(f.IntN(256)), pickOf(f.Rand, 0, stream, stream+2), make([]byte, f.IntN(100))))
		}
		body := envelope(f.message())
		body[0] = byte(f.IntN(20) / 19)
		size := pickOf(f.Rand, 1+f.IntN(100), 16_384, 16_384, 16_384)
		for len(body) > 0 {
			n := min(size, len(body))
			flags := byte(0)
			if n == len(body) {
				flags = byte(f.IntN(4) / 3)
			}
			if _, err := conn.Write(http2Frame(0, flags, stream, body[:n])); err != nil {
				return
			}
			if body = body[n:]; f.IntN(200) == 0 {
				break
			}
		}
		if f.IntN(4) == 0 {
			_, _ = conn.Write(http2Frame(3, 0, stream, []byte{0, 0, 0, 8}))
		}
		stream += 2
	}
}

// crowd opens connections that say little.
func (f *fuzzer) crowd(ctx context.Context) {
	for range f.IntN(2 * doorsConns) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", pickOf(f.Rand, f.http, f.grpc))
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte(pickOf(f.Rand, "", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "POST /v1/feed HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", f.IntN(20_000)))))
		defer conn.Close()
	}
}

// halves sends large parts of bodies from many connections, and waits.
func (f *fuzzer) halves(ctx context.Context) {
	part := []byte(strings.Repeat(" ", f.IntN(4<<20)))
	for range f.IntN(40) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", f.http)
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
		fmt.Fprintf(conn, "POST /v1/feed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", intake.MaxBytes)
		if _, err := conn.Write(part); err != nil {
			return
		}
	}
}
