//go:build linux

package campaign

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// packets drops and redirects what single processes send to their neighbours,
// by user id and port.
type packets struct{ table string }

// tables counts them: a test that waits has its own still.
var tables int

func newPackets(t *testing.T) *packets {
	t.Helper()
	tables++
	p := &packets{fmt.Sprintf("inet millrace_%d_%d", os.Getpid(), tables)}
	if err := p.apply(
		"add table "+p.table,
		"add chain "+p.table+" nat { type nat hook output priority -100 ; }",
		"add chain "+p.table+" out { type filter hook output priority 0 ; }",
		"add chain "+p.table+" in { type filter hook input priority 0 ; }",
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.apply("delete table " + p.table); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *packets) apply(rules ...string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(strings.Join(rules, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// direction says which packets of a connection are lost.
type direction uint8

const (
	bothWays direction = iota
	outwards           // what the process sends
	inwards            // what it is sent
)

func (d direction) String() string {
	return [...]string{"both ways", "outwards", "inwards"}[d]
}

// cut loses what a user's connections to a port carry.
func (p *packets) cut(uid uint32, port int, d direction) error {
	var rules []string
	if d != inwards {
		rules = append(rules, fmt.Sprintf("add rule %s out meta skuid %d tcp dport %d drop", p.table, uid, port))
	}
	if d != outwards {
		rules = append(rules, fmt.Sprintf("add rule %s in meta skuid %d tcp sport %d drop", p.table, uid, port))
	}
	return p.apply(rules...)
}

// hide loses what anybody sends to a port (inwards) or is sent from it.
func (p *packets) hide(port int, d direction) error {
	var rules []string
	if d != inwards {
		rules = append(rules, fmt.Sprintf("add rule %s out tcp sport %d drop", p.table, port))
	}
	if d != outwards {
		rules = append(rules, fmt.Sprintf("add rule %s out tcp dport %d drop", p.table, port))
	}
	return p.apply(rules...)
}

// divert leads a user's connections to a port to another one. Those that there
// are end, so that they are made again.
func (p *packets) divert(uid uint32, port, to int) error {
	return p.apply(
		fmt.Sprintf("add rule %s nat meta skuid %d tcp dport %d redirect to :%d", p.table, uid, port, to),
		fmt.Sprintf("add rule %s out meta skuid %d tcp dport %d reject with tcp reset", p.table, uid, port),
	)
}

// heal lets everything through. What was diverted stays where it is until it
// is made again.
func (p *packets) heal() error {
	return p.apply("flush chain "+p.table+" nat", "flush chain "+p.table+" out", "flush chain "+p.table+" in")
}

// proxy passes bytes on after a delay.
type proxy struct {
	port  int
	to    string
	delay atomic.Int64 // nanoseconds
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &proxy{port: l.Addr().(*net.TCPAddr).Port, to: to}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p
}

func (p *proxy) serve(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			p.pass(way[0], way[1])
			done <- struct{}{}
		}()
	}
	<-done
}

// chunk is what was read at a time.
type chunk struct {
	at   time.Time
	data []byte
}

// pass copies until either side ends, each byte as late as the delay says.
func (p *proxy) pass(from io.Reader, to io.Writer) {
	late := make(chan chunk, 1000)
	go func() {
		defer close(late)
		for {
			data := make([]byte, 64<<10)
			n, err := from.Read(data)
			if n > 0 {
				late <- chunk{time.Now(), data[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	failed := false
	for c := range late {
		time.Sleep(time.Until(c.at.Add(time.Duration(p.delay.Load()))))
		if !failed {
			_, err := to.Write(c.data)
			failed = err != nil
		}
		if failed {
			return
		}
	}
}
