package schemas

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// parseAny parses a schema of any type, roles or not.
func parseAny(avsc []byte) (*node, error) {
	p, err := parseTree(avsc)
	if err != nil {
		return nil, err
	}
	return p.root, errors.Join(p.faults...)
}

func readFile(t testing.TB, path ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{"testdata", "avro"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformanceCanonical(t *testing.T) {
	text := string(readFile(t, "schema-tests.txt"))
	cases := regexp.MustCompile(`(?s)\n<<INPUT(.*?)\n(?:INPUT\n)?<<canonical ([^\n]*)\n(?:<<fingerprint (-?\d+)\n)?`).FindAllStringSubmatch(text, -1)
	if len(cases) != 34 {
		t.Fatalf("read %d cases of the file's 34", len(cases))
	}
	for _, c := range cases {
		input, want, fp := strings.TrimSpace(c[1]), c[2], c[3]
		refused := map[string]string{
			`[  ]`: "the union is empty",
			`{ "items":{"type":"null"}, "type":"array"}`: "can take no bytes",
		}[input]
		if strings.Contains(input, "PigValue") {
			refused = "contains itself"
		}
		n, err := parseAny([]byte(input))
		if refused != "" {
			if err == nil || !strings.Contains(err.Error(), refused) {
				t.Errorf("%s: not refused because %s: %v", input, refused, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", input, err)
			continue
		}
		got := canonicalForm(n)
		if got != want {
			t.Errorf("%s: canonical form %s, want %s", input, got, want)
		}
		if fp == "" {
			continue
		}
		if n, _ := strconv.ParseInt(fp, 10, 64); fingerprint(got) != millrace.Fingerprint(n) {
			t.Errorf("%s: fingerprint %s, want %016x", input, fingerprint(got), uint64(n))
		}
	}
}

func TestConformanceSchemas(t *testing.T) {
	// Recursive schemas are valid Avro that is refused by design.
	recursive := map[string]bool{"recursive_record": true, "namespace_recursive": true, "namespace_null_record": true, "interop.avsc": true, "namespace_simple": true, "namespace_fullname": true}
	for _, dir := range []string{"pass", "fail"} {
		entries, err := os.ReadDir(filepath.Join("testdata", "avro", "c_schema_tests", dir))
		if err != nil || len(entries) < 12 {
			t.Fatalf("%d schemas, %v", len(entries), err)
		}
		for _, e := range entries {
			_, err := parseAny(readFile(t, "c_schema_tests", dir, e.Name()))
			switch {
			case recursive[e.Name()]:
				if err == nil || !strings.Contains(err.Error(), "contains itself") {
					t.Errorf("%s/%s: not refused as recursive: %v", dir, e.Name(), err)
				}
			case dir == "pass" && err != nil:
				t.Errorf("%s: %v", e.Name(), err)
			case dir == "fail" && err == nil:
				t.Errorf("%s: accepted", e.Name())
			}
		}
	}
}

func TestConformanceMessage(t *testing.T) {
	f, err := Unframe(readFile(t, "messageV1", "test_message.bin"))
	if err != nil {
		t.Fatal(err)
	}
	avsc := readFile(t, "messageV1", "test_schema.avsc")
	n, err := parseAny(avsc)
	if err != nil {
		t.Fatal(err)
	}
	if fp := fingerprint(canonicalForm(n)); fp != f.Fingerprint {
		t.Fatalf("fingerprint %s in the message, %s of its schema", f.Fingerprint, fp)
	}
	in := input{b: f.Body}
	got, _ := json.Marshal(in.value(n))
	if want := `{"id":42,"name":"Bill","tags":["dog_lover","cat_hater"]}`; string(got) != want || in.fault != "" || in.at != len(f.Body) {
		t.Fatalf("%s, fault %q, %d of %d bytes; want %s", got, in.fault, in.at, len(f.Body), want)
	}
}

func TestConformanceLongs(t *testing.T) {
	var tables struct {
		Longs    [][2]any                                    `json:"binary_encodings_long"`
		Defaults []struct{ Schema, Default json.RawMessage } `json:"default_value_examples"`
	}
	if err := json.Unmarshal(readFile(t, "py_io_tables.json"), &tables); err != nil {
		t.Fatal(err)
	}
	if len(tables.Longs) == 0 || len(tables.Defaults) == 0 {
		t.Fatal("no tables")
	}
	for _, c := range tables.Longs {
		b, err := hex.DecodeString(strings.ReplaceAll(c[1].(string), " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		in := input{b: b}
		if got := in.long(); got != int64(c[0].(float64)) || in.fault != "" || in.at != len(b) {
			t.Errorf("%x reads as %d, %q; want %v", b, got, in.fault, c[0])
		}
		e := encoder{}
		if e.long(int64(c[0].(float64))); string(e.buf) != string(b) {
			t.Errorf("%v encodes to %x, want %x", c[0], e.buf, b)
		}
	}
	for _, c := range tables.Defaults {
		avsc := `{"type":"record","name":"R","fields":[{"name":"f","type":` + string(c.Schema) + `,"default":` + string(c.Default) + `}]}`
		if _, err := parseAny([]byte(avsc)); err != nil {
			t.Errorf("%s: %v", avsc, err)
		}
	}
}
