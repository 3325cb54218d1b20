package freeport

import (
	"net"
	"testing"
)

func TestEachPortOnce(t *testing.T) {
	seen := map[string]bool{}
	for range 300 {
		addr, err := Addr()
		if err != nil {
			t.Fatal(err)
		}
		if seen[addr] {
			t.Fatalf("%s was given out twice", addr)
		}
		seen[addr] = true
	}
}

func TestRowsLeaveOutWhatIsTaken(t *testing.T) {
	start, err := Row(20)
	if err != nil {
		t.Fatal(err)
	}
	given.held, given.next = map[int]bool{}, start
	l, err := net.Listen("tcp", local(start+1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got, err := Row(3)
	if err != nil {
		t.Fatal(err)
	}
	if got <= start+1 {
		t.Fatalf("the row from %d has %d in it, which is taken", got, start+1)
	}
	given.next = beyond - 1
	if got, err := Row(3); err != nil || got+3 > beyond {
		t.Fatalf("a row from %d, %v: want one below %d", got, err, beyond)
	}
}
