package store

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace"
)

// panics reports whether f does.
func panics(f func()) (broken bool) {
	defer func() { broken = recover() != nil }()
	f()
	return false
}

// A reader that panics, and whose asker survives it, leaves neither a lock that
// ingest waits for nor an iterator that stands in the way of Close.
func TestAPanicLetsGo(t *testing.T) {
	s := openMem(t, Options{})
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	db := s.db
	for what, read := range map[string]func(){
		"Read":       func() { s.Read(nil, 3, name, 0, 1) },
		"ReadNewest": func() { readNewest(s, 3, name, 1) },
		"Features":   func() { s.Features(3, name.Entity) },
		"Find":       func() { s.Find(3, name, "a") },
	} {
		s.db = nil
		if !panics(read) {
			t.Errorf("%s does not panic: the test shows nothing", what)
		}
		s.db = db
		if mu := &s.parts[3].mu; !mu.TryLock() {
			t.Fatalf("%s panicked and holds the partition", what)
		} else {
			mu.Unlock()
		}
	}
	var b Batch
	b.PutFeatures(3, name.Entity, Features{Subject: "s", Version: 1})
	apply(t, s, &b)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if !panics(func() {
		scan(s.db, featuresPrefix(3, name.Entity), func(k, v []byte) error { panic(fmt.Sprintf("%q", k)) })
	}) {
		t.Error("no row was visited: the test shows nothing")
	}
	if panics(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("an iterator is open")
	}
}
