package rig

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc (USER_HZ, which is the same wherever
// Linux runs).
const tick = 10 * time.Millisecond

// used returns what a process has used. It reads /proc/PID/stat. The command's name, which
// may contain anything, ends at the last closing parenthesis. User and system time are the
// 12th and 13th words after it, and resident pages the 22nd.
func used(pid int) (u Used, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	words := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(words) < 22 {
		return u, fmt.Errorf("/proc/%d/stat has %d words", pid, len(words))
	}
	var numbers [3]int64
	for i, at := range []int{11, 12, 21} {
		if numbers[i], err = strconv.ParseInt(words[at], 10, 64); err != nil {
			return u, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
	}
	return Used{time.Duration(numbers[0]+numbers[1]) * tick, numbers[2] * int64(os.Getpagesize())}, nil
}

// listening is the state of a socket that accepts connections, in /proc/net/tcp.
const listening = "0A"

// listener returns the id of the process that listens on the port of addr on this machine.
func listener(addr string) (pid int, err error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, err
	}
	var sockets []string
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // without IPv6 there is no tcp6
		}
		for line := range strings.Lines(string(text)) {
			w := strings.Fields(line)
			if len(w) > 9 && w[3] == listening && strings.HasSuffix(w[1], fmt.Sprintf(":%04X", n)) {
				sockets = append(sockets, "socket:["+w[9]+"]")
			}
		}
	}
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, err
	}
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && slices.Contains(sockets, to) {
			return strconv.Atoi(strings.Split(fd, "/")[2])
		}
	}
	return 0, fmt.Errorf("no process of this machine that can be seen listens on %s", addr)
}
