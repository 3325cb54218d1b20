package team

import (
	"bufio"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// luceneFiles is the source of the server with Lucene: a Maven project, which is built when
// the benchmark needs it.
//
//go:embed lucene/pom.xml lucene/src
var luceneFiles embed.FS

// startLucene builds and starts the server with Lucene, in one JVM. If Java or Maven is
// missing or Maven cannot build it, startLucene returns nil without an error, and adds the
// reason to r.skipped.
func (r *run) startLucene() (*system, error) {
	for _, tool := range []string{javaOf(), "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			r.skipped = append(r.skipped, "Lucene is left out: no "+tool+" is installed (Java 17 or newer and Maven are needed)")
			return nil, nil
		}
	}
	dir := filepath.Join(r.family.Dir, "lucene")
	if err := copyLucene(dir); err != nil {
		return nil, err
	}
	build := exec.CommandContext(r.family.Ctx, "mvn", "-q", "-B", "compile", "dependency:copy-dependencies")
	build.Dir = dir
	if said, err := build.CombinedOutput(); err != nil {
		r.skipped = append(r.skipped, fmt.Sprintf("Lucene is left out: Maven could not build it: %v: %s", err, lastLine(said)))
		return nil, nil
	}
	records := filepath.Join(dir, "records")
	if err := r.w.writeRecords(records); err != nil {
		return nil, err
	}
	cmd := exec.Command(javaOf(), "-Xmx2g", "-cp", filepath.Join(dir, "target", "classes")+string(os.PathListSeparator)+filepath.Join(dir, "target", "dependency", "*"), "Team", records, filepath.Join(dir, "index"), filepath.Join(dir, "model"))
	if err := r.w.writeModels(filepath.Join(dir, "model")); err != nil {
		return nil, err
	}
	p, out, err := r.family.LaunchListening("lucene", cmd)
	if err != nil {
		return nil, err
	}
	var addr string
	if err := r.said(out, &addr); err != nil {
		return nil, err
	}
	return &system{name: "Lucene, one JVM", label: "lucene", roles: []role{{"server", p.Used}}, dial: dialFrames(addr)}, nil
}

// javaOf returns the Java that Maven uses too: that of JAVA_HOME, or else that of PATH.
func javaOf() string {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return filepath.Join(home, "bin", "java")
	}
	return "java"
}

// copyLucene writes luceneFiles to dir.
func copyLucene(dir string) error {
	files, err := fs.Sub(luceneFiles, "lucene")
	if err != nil {
		return err
	}
	return os.CopyFS(dir, files)
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// writeRecords writes all records to a file for the server. A record is a byte of 1, and then
// its texts, kind, time, numbers and vector, encoded as in frames. A byte of 0 ends the file.
func (w *world) writeRecords(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := bufio.NewWriterSize(f, 1<<20)
	var b []byte
	for e := range w.entities {
		for _, x := range w.records(e) {
			b = append(b[:0], 1)
			for _, s := range []string{x.id, x.author, x.object, x.language, x.country, x.text} {
				b = appendText(b, s)
			}
			b = append(b, byte(x.kind))
			for _, n := range []int64{x.at, x.likes, x.comments, x.imp} {
				b = binary.BigEndian.AppendUint64(b, uint64(n))
			}
			for _, v := range x.vector {
				b = appendFloat(b, v)
			}
			if _, err := out.Write(b); err != nil {
				return err
			}
		}
	}
	if err := out.WriteByte(0); err != nil {
		return err
	}
	return out.Flush()
}

// writeModels writes to a file what the server needs beside records: the instant of all
// questions, the window in milliseconds, the limit, the number of models, the bonuses of the
// languages, and the models.
func (w *world) writeModels(path string) error {
	var b []byte
	for _, n := range []int64{asOf, window.Milliseconds(), limit, int64(len(models))} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	for _, x := range languageBonus {
		b = appendDouble(b, x)
	}
	for i := range models {
		m := &models[i]
		for _, x := range slices.Concat(m.vector[:], m.own[:]) {
			b = appendDouble(b, x)
		}
		viewers := byte(0)
		if m.viewers {
			viewers = 1
		}
		b = append(b, viewers)
	}
	return os.WriteFile(path, b, 0o644)
}
