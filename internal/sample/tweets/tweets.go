// Package tweets reads a data set of real posts for tests. The data set is not part of the
// project.
package tweets

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// ErrAbsent says that the data set is not on this machine. A test skips on it. If
// MILLRACE_SHARED is set and the data set is absent, the error is another one, on which a
// test fails.
var ErrAbsent = errors.New("tweets: no shared data; put it beside the project as ../shared, or set MILLRACE_SHARED to its folder")

// All yields 297,462 real posts by accounts that Twitter published as a troll farm, in
// order of time. Each is a line of JSON that the activity schema reads. A few authors
// wrote most of them. Times are to the minute, so that many are equal. After an error,
// which comes with a nil line, nothing more is yielded.
//
// A retweet has the verb share. The author's followers stand for impressions. The
// features are seven numbers: bytes of text, links, hashtags, mentions, and the author's
// following, followers and updates. The project may not ship the data set; it is read
// from data/ira-tweets in the folder of shared data.
func All() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if err := eachTweet(func(line []byte) bool { return yield(line, nil) }); err != nil {
			yield(nil, err)
		}
	}
}

// eachTweet calls do for each post, until it returns false.
func eachTweet(do func([]byte) bool) error {
	f, err := openShared("data/ira-tweets/events.tsv.zst")
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		return err
	}
	defer z.Close()
	in := bufio.NewScanner(z)
	if !in.Scan() || in.Text() != tweetColumns {
		return fmt.Errorf("tweets: the first line is %q, want %q", in.Text(), tweetColumns)
	}
	for at := 2; in.Scan(); at++ {
		line, err := tweet(in.Text())
		if err != nil {
			return fmt.Errorf("tweets: line %d: %w", at, err)
		}
		if !do(line) {
			return nil
		}
	}
	return in.Err()
}

// openShared opens a file of the shared data: below MILLRACE_SHARED, or else below
// ../shared of the project.
func openShared(name string) (*os.File, error) {
	if dir := os.Getenv("MILLRACE_SHARED"); dir != "" {
		return os.Open(filepath.Join(dir, name))
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(root)
		if up == root {
			return nil, ErrAbsent
		}
		root = up
	}
	f, err := os.Open(filepath.Join(root, "..", "shared", name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrAbsent
	}
	return f, err
}

// tweetColumns is the first line of the file: the names of its columns.
const tweetColumns = "event_id\tunix_s\tauthor\tlanguage\tregion\tpost_type\tis_retweet\trt_author\tcontent_bytes\turls\thashtags\tmentions\tfollowing\tfollowers\tupdates"

// tweet returns the record of a row of the file, as JSON.
func tweet(row string) ([]byte, error) {
	f := strings.Split(row, "\t")
	if want := strings.Count(tweetColumns, "\t") + 1; len(f) != want {
		return nil, fmt.Errorf("%d columns, want %d", len(f), want)
	}
	var numbers [15]float64
	for _, i := range []int{1, 7, 8, 9, 10, 11, 12, 13, 14} {
		v, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return nil, err
		}
		numbers[i] = float64(v)
	}
	record := map[string]any{
		"id":          "post:" + f[0],
		"actor":       "member:" + f[2],
		"verb":        "post",
		"created_at":  time.Unix(int64(numbers[1]), 0).UTC().Format(time.RFC3339),
		"language":    f[3],
		"country":     f[4],
		"impressions": int64(numbers[13]),
		"features":    numbers[8:15],
	}
	if f[6] == "1" {
		record["verb"] = "share"
	}
	if f[7] != "-1" && f[7] != f[2] {
		record["about"] = []string{"member:" + f[7]}
	}
	return json.Marshal(record)
}
