package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
)

// activity is a record of the activity schema, as `millrace load` reads it.
type activity struct {
	ID        string   `json:"id"`
	Actor     string   `json:"actor"`
	Verb      string   `json:"verb"`
	CreatedAt string   `json:"created_at"`
	Object    string   `json:"object"`
	About     []string `json:"about,omitempty"`
	Language  string   `json:"language,omitempty"`
	Country   string   `json:"country,omitempty"`
	Text      string   `json:"text,omitempty"`
	Likes     int      `json:"likes,omitempty"`
	Comments  int      `json:"comments,omitempty"`

	time int64 // CreatedAt in milliseconds since the epoch, to sort by
}

// follows says whom a member follows; all are entities, such as member:1.
type follows struct {
	Member  string   `json:"member"`
	Follows []string `json:"follows"`
}

// name is the name of a member or a forum.
type name struct {
	Entity string `json:"entity"`
	Name   string `json:"name"`
}

// write writes the three files of the sample.
func (n *network) write(folder string) error {
	if err := writeLines(folder, "activity", n.activities()); err != nil {
		return err
	}
	if err := writeLines(folder, "follows", n.follows()); err != nil {
		return err
	}
	return writeLines(folder, "names", n.names())
}

// activities returns a record for each message and each like, in the order of time.
func (n *network) activities() []activity {
	n.count()
	var as []activity
	for _, m := range n.messages {
		as = append(as, n.message(m))
	}
	for _, l := range n.likes {
		as = append(as, n.like(l))
	}
	slices.SortFunc(as, func(a, b activity) int { return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.ID, b.ID)) })
	return as
}

// count sets for each message the number of its likes, and the number of comments anywhere
// below it in its thread.
func (n *network) count() {
	for _, l := range n.likes {
		n.messages[l.message].likes++
	}
	for _, m := range n.messages {
		for up := n.messages[m.parent]; up != nil; up = n.messages[up.parent] {
			up.comments++
		}
	}
}

// message returns the record of a post or a comment. Its object is the post at the root
// of the thread. It belongs to the timelines of the author and of the forum, and a
// comment also to that of the member it replies to.
func (n *network) message(m *message) activity {
	root := n.root(m)
	a := activity{
		ID: n.id(m), Actor: n.member(m.author), Verb: "post", Object: n.id(root), About: []string{forum(root.forum)},
		Language: cmp.Or(m.language, n.person[m.author].language), Country: m.country, Text: n.text(m),
		Likes: m.likes, Comments: m.comments,
	}
	if parent := n.messages[m.parent]; parent != nil {
		a.Verb = "comment"
		if parent.author != m.author {
			a.About = append(a.About, n.member(parent.author))
		}
	}
	return a.at(m.time)
}

// like returns the record of a like. It belongs to the timelines of the member who likes
// and of the message's author. Its text is that of the message.
func (n *network) like(l like) activity {
	m, p := n.messages[l.message], n.person[l.person]
	a := activity{
		ID: fmt.Sprintf("like:%d:%d", n.number[l.person], m.id), Actor: n.member(l.person), Verb: "like",
		Object: n.id(n.root(m)), Language: p.language, Country: p.country, Text: n.text(m),
	}
	if m.author != l.person {
		a.About = []string{n.member(m.author)}
	}
	return a.at(l.time)
}

// at returns a record with its time set to ms, in milliseconds since the epoch.
func (a activity) at(ms int64) activity {
	a.time = ms
	a.CreatedAt = time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z07:00")
	return a
}

// root returns the post at the root of a message's thread.
func (n *network) root(m *message) *message {
	for m.parent != 0 {
		m = n.messages[m.parent]
	}
	return m
}

// text returns the text of a message. For a photo it is a caption.
func (n *network) text(m *message) string {
	if m.photo {
		return "a photo in " + n.forums[m.forum]
	}
	return m.text
}

func (n *network) id(m *message) string {
	if m.parent == 0 {
		return fmt.Sprintf("post:%d", m.id)
	}
	return fmt.Sprintf("comment:%d", m.id)
}

func (n *network) member(person int64) string { return fmt.Sprintf("member:%d", n.number[person]) }

func forum(id int64) string { return fmt.Sprintf("forum:%d", id) }

// follows returns, for each member, the members whom that member follows: all friends.
func (n *network) follows() []follows {
	friends := map[int64][]int64{}
	for _, k := range n.knows {
		friends[k[0]] = append(friends[k[0]], k[1])
		friends[k[1]] = append(friends[k[1]], k[0])
	}
	var all []follows
	for _, id := range n.members {
		slices.Sort(friends[id])
		f := follows{Member: n.member(id), Follows: []string{}}
		for _, friend := range slices.Compact(friends[id]) {
			f.Follows = append(f.Follows, n.member(friend))
		}
		all = append(all, f)
	}
	return all
}

// names returns the names of members, then of forums, in order of id.
func (n *network) names() []name {
	var all []name
	for _, id := range n.members {
		all = append(all, name{n.member(id), n.person[id].name})
	}
	for _, id := range slices.Sorted(maps.Keys(n.forums)) {
		all = append(all, name{forum(id), n.forums[id]})
	}
	return all
}

// writeLines writes one JSON line for each of lines to folder/name.ndjson.zst.
func writeLines[T any](folder, name string, lines []T) error {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	for _, l := range lines {
		if err := to.Encode(l); err != nil {
			return err
		}
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return err
	}
	defer z.Close()
	return os.WriteFile(filepath.Join(folder, name+".ndjson.zst"), z.EncodeAll(b.Bytes(), nil), 0o644)
}
