// Package freeport gives out loopback ports for processes that are started with
// the address on which they are to listen.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports that are given out lie between first and beyond: below 32768, from where
// Linux takes those of outgoing connections (ip_local_port_range), since one of
// these may hold a port for as long as it likes.
const first, beyond = 10_000, 32_000

var given struct {
	sync.Mutex
	next int
	held map[int]bool // whose owner may not listen yet
}

// Addr is an address of loopback on which nobody listens, and which this process
// was not given before.
func Addr() (string, error) {
	port, err := Row(1)
	return local(port), err
}

// Row is the first of n ports in a row, each as by [Addr].
func Row(n int) (int, error) {
	given.Lock()
	defer given.Unlock()
	if given.held == nil {
		// Processes that ask at the same time go up from places of their own.
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
