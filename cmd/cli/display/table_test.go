package display

import (
	"errors"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

type name string

// What others have written is a cell in a line, of whatever type and by whatever verb.
func TestTablesHoldWhatOthersWrote(t *testing.T) {
	const evil = "member:\x1b[2Jevil\n99\tfake\xff\u202e"
	var b strings.Builder
	table := NewTable(&b)
	table.Printf("ID\tN\tX\n")
	table.Printf("%s\t%d\t%.1f\n%v\t%-3d|\t%q\n", evil, 7, 1.25, name(evil), 7, "a\nb")
	table.Printf("%s\t%v\t%s\n", errors.New(evil), []string{evil}, time.Second)
	table.Printf("%s\t%.6s\n", Cells("a\tb"), evil)
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	const shown = `member:\u001b[2Jevil\u000a99\u0009fake` + "\ufffd" + `\u202e`
	want := [][]string{{"ID", "N", "X"}, {shown, "7", "1.2"}, {shown, "7  |", `"a\nb"`}, {shown, "[" + shown + "]", "1s"}, {"a", "b", "member"}}
	var got [][]string
	for l := range strings.Lines(b.String()) {
		got = append(got, regexp.MustCompile(`  +`).Split(strings.ReplaceAll(strings.TrimSpace(l), "7  |", "7||"), -1))
	}
	want[2][1] = "7||"
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// No command makes tables past Table, which nobody can write to past Printf; and those
// that show records and answers write no line past it.
func TestTablesAreMadeHere(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || filepath.Base(path) == "table.go" && filepath.Base(filepath.Dir(path)) == "display" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		if dir := filepath.Base(filepath.Dir(path)); (dir == "ask" || dir == "operate") && strings.Contains(string(text), "fmt.Fprintf(") {
			t.Errorf("%s has fmt.Fprintf; say display.Printf", path)
		}
		for _, i := range f.Imports {
			if i.Path.Value == `"text/tabwriter"` {
				t.Errorf("%s imports text/tabwriter; make a display.Table", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
