// Package sample is the bundled network: a few thousand posts, comments and
// likes of 222 made-up members over ten months, who follows whom, and names to
// print. data/README.md says where it is from.
package sample

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"iter"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace"
)

//go:embed data/*.ndjson.zst
var data embed.FS

// Records yields the records, oldest first, each a line of JSON that the
// activity schema reads. A line is the caller's to keep but not to change.
func Records() iter.Seq[[]byte] { return lines(unpack("activity")) }

// Members returns every member, member:1 first.
func Members() []millrace.Entity { return follows().members }

// Follows returns whom a member follows, in order of their numbers; nil for an entity that is
// not a member. The caller must not change it.
func Follows(member millrace.Entity) []millrace.Entity { return follows().of[member] }

// Name returns what to print for a member or forum, and the entity itself when
// it has no name.
func Name(e millrace.Entity) string {
	if s, ok := names()[e]; ok {
		return s
	}
	return string(e)
}

type followLists struct {
	members []millrace.Entity
	of      map[millrace.Entity][]millrace.Entity
}

var follows = sync.OnceValue(func() followLists {
	l := followLists{of: map[millrace.Entity][]millrace.Entity{}}
	for line := range lines(unpack("follows")) {
		var f struct {
			Member  millrace.Entity
			Follows []millrace.Entity
		}
		parse(line, &f)
		l.members = append(l.members, f.Member)
		l.of[f.Member] = f.Follows
	}
	return l
})

var names = sync.OnceValue(func() map[millrace.Entity]string {
	all := map[millrace.Entity]string{}
	for line := range lines(unpack("names")) {
		var n struct {
			Entity millrace.Entity
			Name   string
		}
		parse(line, &n)
		all[n.Entity] = n.Name
	}
	return all
})

// unpack returns the contents of an embedded file. It panics if they are damaged: the tests
// of this package check them, so only a broken build can have such a file.
func unpack(name string) []byte {
	packed, err := data.ReadFile("data/" + name + ".ndjson.zst")
	if err != nil {
		panic(err)
	}
	d, err := zstd.NewReader(nil)
	if err != nil {
		panic(err)
	}
	defer d.Close()
	b, err := d.DecodeAll(packed, nil)
	if err != nil {
		panic(fmt.Errorf("sample: %s: %w", name, err))
	}
	return b
}

// parse decodes a line of JSON. It panics if that is malformed: see unpack.
func parse(line []byte, v any) {
	if err := json.Unmarshal(line, v); err != nil {
		panic(fmt.Errorf("sample: %s: %w", line, err))
	}
}

// lines yields the lines of b without their ends.
func lines(b []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for line := range bytes.Lines(b) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			if !yield(line[:len(line):len(line)]) {
				return
			}
		}
	}
}
