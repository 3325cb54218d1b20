package datadir

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A directory belongs to the node and cluster that it was first used for. It keeps its word
// and its count of starts; one whose identity is damaged gets another.
func TestADirectoryBelongsToOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "data")
	file := filepath.Join(dir, IdentityFile)
	first, err := CheckDir(dir, "test", "n1")
	must(t, err)
	if first.Word == "" || first.Start != 0 || first.Place == "" || first.Place != placeOf(dir) {
		t.Errorf("made as %+v", first)
	}
	must(t, first.Registered(7))
	again, err := CheckDir(dir, "test", "n1")
	must(t, err)
	if again.Word != first.Word || again.Start != 7 || again.Place != first.Place {
		t.Errorf("found as %+v, and made as %+v", again, first)
	}
	must(t, again.Registered(8))
	if id, err := readIdentity(file); err != nil || id != (identity{"test", "n1", first.Word, 8}) {
		t.Errorf("it says %+v, %v", id, err)
	}
	for _, c := range []struct {
		name string
		id   millrace.NodeID
		want string
	}{{"test", "n2", `node "n2" of cluster "test"`}, {"other", "n1", `node "n1" of cluster "other"`}, {"test", "", `a broker of cluster "test"`}} {
		_, err := CheckDir(dir, c.name, c.id)
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != "data" || !strings.Contains(e.Detail, `belongs to node "n1" of cluster "test", not to `+c.want) {
			t.Errorf("%s %s: %v", c.name, c.id, err)
		}
	}
	for _, damaged := range []string{"", "{", `{"cluster":"test"}`, `{"instance":"x"}`} {
		must(t, os.WriteFile(file, []byte(damaged), 0o600))
		if err := first.Registered(9); !errors.Is(err, errIdentity) {
			t.Errorf("%q: registered, %v", damaged, err)
		}
		anew, err := CheckDir(dir, "test", "n2")
		must(t, err)
		kept, err := os.ReadFile(file + ".damaged")
		if anew.Word == first.Word || err != nil || string(kept) != damaged {
			t.Errorf("%q: %+v, and kept is %q, %v", damaged, anew, kept, err)
		}
	}
	must(t, os.WriteFile(file, make([]byte, maxIdentityBytes+1), 0o600))
	if _, err := CheckDir(dir, "test", "n1"); err == nil {
		t.Error("an identity that is too long is taken")
	}
	plain := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(plain, nil, 0o600))
	if _, err := CheckDir(filepath.Join(plain, "data"), "test", "n1"); err == nil {
		t.Error("a directory that cannot be made is taken")
	}
	if err := (Instance{}).Registered(1); err != nil {
		t.Errorf("without a directory: %v", err)
	}
	if place := placeOf(filepath.Join(dir, "none")); place != "" || placeOf(t.TempDir()) == first.Place {
		t.Errorf("a directory that is not there is at %q", place)
	}
}

// A file is read up to a bound, and replaced whole.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if _, err := Read(file, 9); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, body := range []string{"a longer one", "123"} {
		must(t, Replace(file, []byte(body), 0o640))
		got, err := Read(file, int64(len(body)))
		if err != nil || string(got) != body {
			t.Errorf("read as %q, %v", got, err)
		}
		if _, err := Read(file, int64(len(body))-1); err == nil || !strings.Contains(err.Error(), "is larger than") {
			t.Errorf("one byte fewer: %v", err)
		}
	}
	info, err := os.Stat(file)
	must(t, err)
	if all, _ := os.ReadDir(dir); len(all) != 1 || info.Mode() != 0o640 {
		t.Errorf("beside it there are %v, and it is %v", all, info.Mode())
	}
	if err := Replace(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	must(t, os.MkdirAll(filepath.Join(dir, "full", "x"), 0o700))
	if err := Replace(filepath.Join(dir, "full"), nil, 0o600); err == nil {
		t.Error("a directory is replaced by a file")
	}
	if _, err := Read(filepath.Join(dir, "full"), 9); err == nil {
		t.Error("a directory is read")
	}
}

// What comes from a file is told with its age, once, and until etcd has told the present
// state.
func TestFromDisk(t *testing.T) {
	var f FromDisk
	file := filepath.Join(t.TempDir(), "map.json")
	must(t, os.WriteFile(file, nil, 0o600))
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	must(t, os.Chtimes(file, old, old))
	away := errors.New("away")
	ages := func() map[string]float64 {
		out := make(chan prometheus.Metric, 9)
		f.Collect(out)
		close(out)
		all := map[string]float64{}
		for m := range out {
			var d dto.Metric
			must(t, m.Write(&d))
			all[d.Label[0].GetValue()] = d.GetGauge().GetValue()
		}
		return all
	}
	if at := f.Heard("map", away); !at.IsZero() || len(ages()) > 0 {
		t.Errorf("nothing is from disk: %v, %v", at, ages())
	}
	f.Begin("map", file)
	f.Begin("none", file+"x")
	if at := f.Heard("none", away); !at.IsZero() {
		t.Errorf("no file was written at %v", at)
	}
	if at := f.Heard("map", away); !at.Equal(old) {
		t.Errorf("written at %v, want %v", at, old)
	}
	if at := f.Heard("map", away); !at.IsZero() {
		t.Errorf("it is told twice: %v", at)
	}
	if got := ages(); len(got) != 2 || got["map"] < 3600 || got["map"] > 7200 || got["none"] != 0 {
		t.Errorf("ages are %v", got)
	}
	if at := f.Heard("map", nil); !at.IsZero() || ages()["map"] != 0 {
		t.Errorf("etcd has told: %v, %v", at, ages())
	}
	if s := SecondsSince(time.Now().Add(time.Hour)); s != 1e-3 {
		t.Errorf("a time to come was %v s ago", s)
	}
}

// What could not be written is written again until it is, and a later write of the same file
// takes its place.
func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		until, stop := context.WithCancel(t.Context())
		runs := 0
		w := NewWriter(slog.New(slog.NewTextHandler(&log, nil)), func(do func(context.Context)) { runs++; go do(until) })
		full, tries := errors.New("the disk is full"), map[string]int{}
		var fault error
		write := func(file string) {
			w.Write(file, func() error { tries[file]++; return fault })
		}
		left := func(files ...string) {
			t.Helper()
			if got := slices.Sorted(maps.Keys(w.Left())); !slices.Equal(got, files) || w.Since().IsZero() != (len(files) == 0) {
				t.Errorf("left are %q since %v, want %q", got, w.Since(), files)
			}
		}
		write("a")
		left()
		if runs != 0 || log.Len() > 0 {
			t.Errorf("nothing failed: %d runs, %q", runs, log.String())
		}
		fault = full
		write("a")
		began := w.Since()
		if !began.Equal(time.Now()) || !strings.Contains(log.String(), "file=a err=\"the disk is full\"") {
			t.Errorf("since %v: %s", began, log.String())
		}
		time.Sleep(time.Second)
		write("b")
		left("a", "b")
		if runs != 1 || w.Since() != began {
			t.Errorf("%d run, since %v, want %v", runs, w.Since(), began)
		}
		time.Sleep(writeAgain)
		synctest.Wait()
		left("a", "b")
		if tries["a"] != 3 || tries["b"] != 2 {
			t.Errorf("tried %v times", tries)
		}
		fault = nil
		write("b") // by its owner, meanwhile
		left("a")
		if w.Since() != began {
			t.Errorf("since %v, want %v", w.Since(), began)
		}
		time.Sleep(writeAgain)
		synctest.Wait()
		left()
		if tries["a"] != 4 || tries["b"] != 3 || !strings.Contains(log.String(), "is kept on disk again") {
			t.Errorf("tried %v times: %s", tries, log.String())
		}
		fault = full
		write("a")
		if runs != 2 {
			t.Errorf("%d runs after another fault", runs)
		}
		stop()
		time.Sleep(2 * writeAgain)
		synctest.Wait()
		if left("a"); tries["a"] != 5 {
			t.Errorf("tried %d times after its end", tries["a"])
		}
		file := filepath.Join(t.TempDir(), "doc")
		w.Save(file, map[string]int{"x": 1})
		if body, err := os.ReadFile(file); err != nil || string(body) != `{"x":1}` {
			t.Errorf("saved as %q, %v", body, err)
		}
		w.Save(file, func() {})
		left(file, "a")
	})
}
