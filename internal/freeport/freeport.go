// Package freeport returns free ports of loopback, for processes that are started with the
// address on which they are to listen.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are from first to beyond - 1. That is below 32768, from which on Linux takes ports for
// outgoing connections (ip_local_port_range): such a connection could hold a port for as long
// as it likes.
const first, beyond = 10_000, 32_000

// given are the ports that this process has returned.
var given struct {
	sync.Mutex
	next int          // the port to try next
	held map[int]bool // ports that were returned: their processes may not listen yet
}

// Addr returns an address of loopback, host:port, on which nobody listens, and that it has not
// returned before in this process.
func Addr() (string, error) {
	port, err := Row(1)
	return local(port), err
}

// Row returns the first of n ports in a row, each free as by [Addr].
func Row(n int) (int, error) {
	given.Lock()
	defer given.Unlock()
	if given.held == nil {
		// Each process begins at a random port, so that several do not find the same ones.
		given.held, given.next = map[int]bool{}, first+rand.IntN(beyond-first)
	}
	for range beyond - first {
		start := given.next
		if start+n > beyond {
			start, given.next = first, first
		}
		given.next++
		if !free(start, n) {
			continue
		}
		for port := start; port < start+n; port++ {
			given.held[port] = true
		}
		given.next = start + n
		return start, nil
	}
	return 0, errors.New("no " + strconv.Itoa(n) + " ports of loopback in a row are free")
}

func free(start, n int) bool {
	for port := start; port < start+n; port++ {
		if given.held[port] {
			return false
		}
		l, err := net.Listen("tcp", local(port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
