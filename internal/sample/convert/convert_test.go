package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// tiny is two friends, Ann (id 20) and Bob (id 7), a photo by Ann that Bob
// comments on, Ann's reply to that, and a like of each message.
var tiny = map[string]string{
	"static/place":                      "id|name|url|type\n1|New_Zealand||country\n2|Oamaru||city\n3|Oceania||continent\n",
	"static/place_isPartOf_place":       "Place.id|Place.id\n2|1\n1|3\n",
	"dynamic/person":                    "id|firstName|lastName|gender|birthday|creationDate|locationIP|browserUsed|language|email\n20|Ann|Abel|female|0|0|||mi;en|\n7|Bob|Bell|male|0|0|||en|\n",
	"dynamic/person_isLocatedIn_place":  "Person.id|Place.id\n20|2\n7|1\n",
	"dynamic/person_knows_person":       "Person.id|Person.id|creationDate\n7|20|0\n",
	"dynamic/post":                      "id|imageFile|creationDate|locationIP|browserUsed|language|content|length\n100|p.jpg|1000|||||0\n",
	"dynamic/comment":                   "id|creationDate|locationIP|browserUsed|content|length\n101|2000|||nice|4\n102|3001|||thanks|6\n",
	"dynamic/post_hasCreator_person":    "Post.id|Person.id\n100|20\n",
	"dynamic/post_isLocatedIn_place":    "Post.id|Place.id\n100|1\n",
	"dynamic/comment_hasCreator_person": "Comment.id|Person.id\n101|7\n102|20\n",
	"dynamic/comment_isLocatedIn_place": "Comment.id|Place.id\n101|1\n102|1\n",
	"dynamic/forum":                     "id|title|creationDate\n5|Album 0 of Ann_Abel|0\n",
	"dynamic/forum_containerOf_post":    "Forum.id|Post.id\n5|100\n",
	"dynamic/comment_replyOf_post":      "Comment.id|Post.id\n101|100\n",
	"dynamic/comment_replyOf_comment":   "Comment.id|Comment.id\n102|101\n",
	"dynamic/person_likes_post":         "Person.id|Post.id|creationDate\n20|100|4000\n",
	"dynamic/person_likes_comment":      "Person.id|Comment.id|creationDate\n7|102|5000\n",
}

// set returns tiny with one table changed.
func set(table, content string) fstest.MapFS {
	m := fstest.MapFS{}
	all := maps.Clone(tiny)
	if table != "" {
		all[table] = content
	}
	for name, s := range all {
		m[name+"_0_0.csv"] = &fstest.MapFile{Data: []byte(s)}
	}
	return m
}

const wantActivity = `{"id":"post:100","actor":"member:2","verb":"post","created_at":"1970-01-01T00:00:01.000Z","object":"post:100","about":["forum:5"],"language":"mi","country":"New Zealand","text":"a photo in Album 0 of Ann Abel","likes":1,"comments":2}
{"id":"comment:101","actor":"member:1","verb":"comment","created_at":"1970-01-01T00:00:02.000Z","object":"post:100","about":["forum:5","member:2"],"language":"en","country":"New Zealand","text":"nice","comments":1}
{"id":"comment:102","actor":"member:2","verb":"comment","created_at":"1970-01-01T00:00:03.001Z","object":"post:100","about":["forum:5","member:1"],"language":"mi","country":"New Zealand","text":"thanks","likes":1}
{"id":"like:2:100","actor":"member:2","verb":"like","created_at":"1970-01-01T00:00:04.000Z","object":"post:100","language":"mi","country":"New Zealand","text":"a photo in Album 0 of Ann Abel"}
{"id":"like:1:102","actor":"member:1","verb":"like","created_at":"1970-01-01T00:00:05.000Z","object":"post:100","about":["member:2"],"language":"en","country":"New Zealand","text":"thanks"}
`

const wantFollows = `{"member":"member:1","follows":["member:2"]}
{"member":"member:2","follows":["member:1"]}
`

const wantNames = `{"entity":"member:1","name":"Bob Bell"}
{"entity":"member:2","name":"Ann Abel"}
{"entity":"forum:5","name":"Album 0 of Ann Abel"}
`

// convert converts a data set and returns the lines of its three files.
func convert(t *testing.T, from fs.FS) map[string]string {
	n, err := read(from)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := n.write(dir); err != nil {
		t.Fatal(err)
	}
	return unpack(t, dir)
}

func unpack(t *testing.T, dir string) map[string]string {
	files := map[string]string{}
	for _, name := range []string{"activity", "follows", "names"} {
		b, err := contents(os.DirFS(dir), name+".ndjson")
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(b)
	}
	return files
}

func TestConvert(t *testing.T) {
	want := map[string]string{"activity": wantActivity, "follows": wantFollows, "names": wantNames}
	for name, got := range convert(t, set("", "")) {
		if got != want[name] {
			t.Errorf("%s:\ngot\n%swant\n%s", name, got, want[name])
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	for _, c := range []struct{ table, content, want string }{
		{"dynamic/post", "id|title\n", "dynamic/post_0_0.csv: the first line is"},
		{"dynamic/post_hasCreator_person", "Post.id|Person.id\n100\n", "line 2 has 1 columns, want 2"},
		{"dynamic/post_hasCreator_person", "Post.id|Person.id\n100|Ann\n", "line 2: strconv.ParseInt"},
		{"dynamic/post_hasCreator_person", "Post.id|Person.id\n", "message 100: no author"},
		{"dynamic/forum_containerOf_post", "Forum.id|Post.id\n", "post 100: no forum"},
		{"dynamic/comment_replyOf_comment", "Comment.id|Comment.id\n102|9\n", "no message 9 to reply to"},
		{"dynamic/person_likes_post", "Person.id|Post.id|creationDate\n20|9|4000\n", "like of 9 by 20"},
		{"dynamic/person_knows_person", "Person.id|Person.id|creationDate\n7|9|0\n", "friendship of 7 and 9"},
	} {
		_, err := read(set(c.table, c.content))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.table, err, c.want)
		}
	}
	if _, err := read(fstest.MapFS{}); err == nil {
		t.Error("an empty folder converts")
	}
}

// The bundled files are what the converter makes of the whole set.
func TestBundledFilesAreFresh(t *testing.T) {
	shared := os.Getenv("MILLRACE_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "..", "shared")
		if _, err := os.Stat(shared); err != nil {
			t.Skip("no shared data; put it beside the project as ../shared, or set MILLRACE_SHARED to its folder")
		}
	}
	bundled := unpack(t, filepath.Join("..", "data"))
	for name, got := range convert(t, os.DirFS(filepath.Join(shared, "data", "ldbc-snb-sf0003"))) {
		if got != bundled[name] {
			t.Errorf("data/%s.ndjson.zst is stale; run the converter again", name)
		}
	}
}
