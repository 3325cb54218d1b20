package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// network is the part of a data set that the sample keeps. Its ids are those of the
// benchmark. A person of the benchmark is a member of the sample.
type network struct {
	members  []int64            // ids of persons, ascending: member:1 is the first
	number   map[int64]int      // the numbers of members, from 1, by the person's id
	person   map[int64]person   // by id
	forums   map[int64]string   // titles, by id
	messages map[int64]*message // by id
	likes    []like
	knows    [][2]int64 // pairs of persons who are friends
}

// person is a person of the benchmark: the full name, the first of the languages, and the
// name of the country.
type person struct{ name, language, country string }

// message is a post or a comment.
type message struct {
	id, time, author, parent int64 // time in milliseconds since the epoch; parent is 0 for a post
	forum                    int64 // the forum that a post is in; 0 for a comment
	language, country, text  string
	photo                    bool
	likes, comments          int // how many it has; count sets them
}

// like says that a person likes a message, with both ids, and since when, in milliseconds
// since the epoch.
type like struct{ person, message, time int64 }

// read reads a data set. Its files may be compressed, and then end in .zst.
func read(fsys fs.FS) (*network, error) {
	n := &network{number: map[int64]int{}, person: map[int64]person{}, forums: map[int64]string{}, messages: map[int64]*message{}}
	places, err := n.readPlaces(fsys)
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return n.readPersons(fsys, places) },
		func() error { return n.readMessages(fsys, places) },
		func() error { return n.readThreads(fsys) },
		func() error { return n.readLikes(fsys) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return n, n.check()
}

// readPlaces returns the country, by name, of each place that is a country or lies in one.
func (n *network) readPlaces(fsys fs.FS) (map[int64]string, error) {
	countries := map[int64]string{}
	err := table(fsys, "static/place", "id|name|url|type", func(r row) {
		if r.text(3) == "country" {
			countries[r.id(0)] = strings.ReplaceAll(r.text(1), "_", " ")
		}
	})
	if err != nil {
		return nil, err
	}
	places := map[int64]string{}
	for id, name := range countries {
		places[id] = name
	}
	return places, table(fsys, "static/place_isPartOf_place", "Place.id|Place.id", func(r row) {
		if name, ok := countries[r.id(1)]; ok {
			places[r.id(0)] = name
		}
	})
}

func (n *network) readPersons(fsys fs.FS, places map[int64]string) error {
	err := table(fsys, "dynamic/person", "id|firstName|lastName|gender|birthday|creationDate|locationIP|browserUsed|language|email", func(r row) {
		first, _, _ := strings.Cut(r.text(8), ";")
		n.person[r.id(0)] = person{name: r.text(1) + " " + r.text(2), language: first}
		n.members = append(n.members, r.id(0))
	})
	if err != nil {
		return err
	}
	slices.Sort(n.members)
	for i, id := range n.members {
		n.number[id] = i + 1
	}
	err = table(fsys, "dynamic/person_isLocatedIn_place", "Person.id|Place.id", func(r row) {
		p := n.person[r.id(0)]
		p.country = places[r.id(1)]
		n.person[r.id(0)] = p
	})
	if err != nil {
		return err
	}
	return table(fsys, "dynamic/person_knows_person", "Person.id|Person.id|creationDate", func(r row) {
		n.knows = append(n.knows, [2]int64{r.id(0), r.id(1)})
	})
}

func (n *network) readMessages(fsys fs.FS, places map[int64]string) error {
	err := table(fsys, "dynamic/post", "id|imageFile|creationDate|locationIP|browserUsed|language|content|length", func(r row) {
		n.messages[r.id(0)] = &message{id: r.id(0), time: r.id(2), language: r.text(5), text: r.text(6), photo: r.text(1) != ""}
	})
	if err != nil {
		return err
	}
	err = table(fsys, "dynamic/comment", "id|creationDate|locationIP|browserUsed|content|length", func(r row) {
		n.messages[r.id(0)] = &message{id: r.id(0), time: r.id(1), text: r.text(4)}
	})
	if err != nil {
		return err
	}
	for _, kind := range []string{"post", "comment"} {
		id := strings.ToUpper(kind[:1]) + kind[1:] + ".id"
		err := table(fsys, "dynamic/"+kind+"_hasCreator_person", id+"|Person.id", n.onMessage(func(m *message, r row) { m.author = r.id(1) }))
		if err != nil {
			return err
		}
		err = table(fsys, "dynamic/"+kind+"_isLocatedIn_place", id+"|Place.id", n.onMessage(func(m *message, r row) { m.country = places[r.id(1)] }))
		if err != nil {
			return err
		}
	}
	return nil
}

// readThreads reads which forum each post is in, and which message each comment replies to.
func (n *network) readThreads(fsys fs.FS) error {
	err := table(fsys, "dynamic/forum", "id|title|creationDate", func(r row) {
		n.forums[r.id(0)] = strings.ReplaceAll(r.text(1), "_", " ")
	})
	if err != nil {
		return err
	}
	err = table(fsys, "dynamic/forum_containerOf_post", "Forum.id|Post.id", func(r row) {
		if m := n.messages[r.id(1)]; m != nil {
			m.forum = r.id(0)
		}
	})
	if err != nil {
		return err
	}
	for _, parent := range []string{"post", "comment"} {
		head := "Comment.id|" + strings.ToUpper(parent[:1]) + parent[1:] + ".id"
		err := table(fsys, "dynamic/comment_replyOf_"+parent, head, n.onMessage(func(m *message, r row) { m.parent = r.id(1) }))
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *network) readLikes(fsys fs.FS) error {
	for _, kind := range []string{"Post", "Comment"} {
		err := table(fsys, "dynamic/person_likes_"+strings.ToLower(kind), "Person.id|"+kind+".id|creationDate", func(r row) {
			n.likes = append(n.likes, like{r.id(0), r.id(1), r.id(2)})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// onMessage returns a function that calls do for each row whose first column is the id of
// a known message. It passes over other rows; check later finds what is missing.
func (n *network) onMessage(do func(*message, row)) func(row) {
	return func(r row) {
		if m := n.messages[r.id(0)]; m != nil {
			do(m, r)
		}
	}
}

// check refuses a data set in which something refers to what is not there.
func (n *network) check() error {
	for id, m := range n.messages {
		if n.number[m.author] == 0 {
			return fmt.Errorf("message %d: no author", id)
		}
		if m.parent == 0 && n.forums[m.forum] == "" {
			return fmt.Errorf("post %d: no forum", id)
		}
		if m.parent != 0 && n.messages[m.parent] == nil {
			return fmt.Errorf("comment %d: no message %d to reply to", id, m.parent)
		}
	}
	for _, l := range n.likes {
		if n.number[l.person] == 0 || n.messages[l.message] == nil {
			return fmt.Errorf("like of %d by %d: no such message or person", l.message, l.person)
		}
	}
	for _, k := range n.knows {
		if n.number[k[0]] == 0 || n.number[k[1]] == 0 {
			return fmt.Errorf("friendship of %d and %d: no such person", k[0], k[1])
		}
	}
	return nil
}

// row is a line of a table. If a number cannot be read, the method id sets err.
type row struct {
	fields []string
	err    *error
}

func (r row) text(i int) string { return r.fields[i] }

func (r row) id(i int) int64 {
	v, err := strconv.ParseInt(r.fields[i], 10, 64)
	if err != nil {
		*r.err = cmp.Or(*r.err, err)
	}
	return v
}

// table calls do for each row of a table. head is what the table's first line must be.
func table(fsys fs.FS, name, head string, do func(row)) error {
	file := name + "_0_0.csv"
	src, err := contents(fsys, file)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(src))
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || lines.Text() != head {
		return fmt.Errorf("%s: the first line is %q, want %q", file, lines.Text(), head)
	}
	columns := strings.Count(head, "|") + 1
	for at := 2; lines.Scan(); at++ {
		r := row{strings.Split(lines.Text(), "|"), new(error)}
		if len(r.fields) != columns {
			return fmt.Errorf("%s: line %d has %d columns, want %d", file, at, len(r.fields), columns)
		}
		if do(r); *r.err != nil {
			return fmt.Errorf("%s: line %d: %w", file, at, *r.err)
		}
	}
	return lines.Err()
}

// contents returns the content of a file, or, if there is none, of its compressed form.
func contents(fsys fs.FS, file string) ([]byte, error) {
	b, err := fs.ReadFile(fsys, file)
	if err == nil {
		return b, nil
	}
	packed, zerr := fs.ReadFile(fsys, file+".zst")
	if zerr != nil {
		return nil, err
	}
	d, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(packed, nil)
}
