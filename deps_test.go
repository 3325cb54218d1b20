package millrace

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/millrace/millrace"

// ban says what the packages under From may not import. Paths are of this
// module and stand for themselves and what is below them; "..." is every
// package, "." the root package alone.
type ban struct {
	From, To string
	Except   []string // importers, of those under From, that may
	Tests    bool     // tests may
	Why      string
}

var bans = []ban{
	{From: "...", To: "cmd", Except: []string{"cmd"}, Why: "cmd sees all, nobody sees cmd"},

	{From: "partitioner", To: "indexnode", Why: "roles meet in the vocabulary and on the wire"},
	{From: "partitioner", To: "broker", Why: "roles meet in the vocabulary and on the wire"},
	{From: "indexnode", To: "partitioner", Why: "roles meet in the vocabulary and on the wire"},
	{From: "indexnode", To: "broker", Why: "roles meet in the vocabulary and on the wire"},
	{From: "broker", To: "partitioner", Why: "roles meet in the vocabulary and on the wire"},
	{From: "broker", To: "indexnode", Why: "roles meet in the vocabulary and on the wire"},
	{From: "coordinator", To: "partitioner", Why: "roles meet in the vocabulary and on the wire"},
	{From: "coordinator", To: "indexnode", Why: "roles meet in the vocabulary and on the wire"},
	{From: "coordinator", To: "broker", Why: "roles meet in the vocabulary and on the wire"},
	{From: "partitioner", To: "coordinator", Why: "roles meet in the vocabulary and on the wire"},
	{From: "indexnode", To: "coordinator", Why: "roles meet in the vocabulary and on the wire"},
	{From: "broker", To: "coordinator", Why: "roles meet in the vocabulary and on the wire"},
	{From: "internal", To: "coordinator", Except: []string{"internal/minicluster"}, Why: "what roles share knows no role"},
	{From: "internal", To: "partitioner", Except: []string{"internal/minicluster", "internal/simulation"}, Why: "what roles share knows no role"},
	{From: "internal", To: "indexnode", Except: []string{"internal/minicluster", "internal/simulation"}, Why: "what roles share knows no role"},
	{From: "internal", To: "broker", Except: []string{"internal/minicluster", "internal/simulation"}, Why: "what roles share knows no role"},

	{From: "broker", To: "internal/kafka", Why: "a broker holds no data and reads no log"},
	{From: "internal/kafka/streams", To: "internal/kafka/groups", Why: "the log of record is read without knowing who writes it"},
	{From: "internal/kafka/progress", To: "internal/kafka/groups", Why: "what is told and asked is known without who does it"},
	{From: "internal/kafka/groups", To: "internal/kafka/streams", Tests: true, Why: "partitioners read no log of record"},
	{From: "...", To: "internal/kafka/follow", Except: []string{"internal/kafka"}, Tests: true, Why: "what rooms of Kafka are made of"},
	{From: "...", To: "internal/kafka/patience", Except: []string{"internal/kafka"}, Why: "what rooms of Kafka are made of"},
	{From: "...", To: "internal/kafka/kafkatest", Tests: true, Why: "a Kafka of tests"},
	{From: "broker/questions", To: "broker/fanout", Why: "what is asked is known without how"},
	{From: "broker/fanout", To: "broker/feeds", Why: "asking knows neither feeds nor models"},
	{From: "broker/fanout", To: "relevance", Why: "asking knows neither feeds nor models"},
	{From: "broker/fanout", To: "broker/pagetoken", Why: "nodes are asked for one page, whichever it is"},
	{From: "broker/pagetoken", To: "broker/questions", Why: "a token has a form of its own"},
	{From: "broker/intake", To: "broker/admission", Why: "who is let in is decided before anything is read"},
	{From: "broker/doors", To: "broker/feeds", Why: "doors know requests and answers, not what is between"},
	{From: "broker/doors", To: "broker/questions", Why: "doors know requests and answers, not what is between"},
	{From: "broker/shadows", To: "broker/feeds", Why: "a sample is a question and a way to ask it"},
	{From: "...", To: "broker/feedstest", Tests: true, Why: "definitions of tests"},
	{From: "indexnode/lookup", To: "indexnode/answers", Why: "timelines are found without knowing who asks"},
	{From: "indexnode/lookup", To: "relevance", Tests: true, Why: "timelines are found without knowing what ranks them"},
	{From: "indexnode/answers", To: "indexnode/replica", Tests: true, Why: "what is answered of a partition is found by the look-up"},
	{From: "indexnode/answers", To: "indexnode/packs", Why: "who answers is given models, whatever brought them"},
	{From: "indexnode/packs", To: "indexnode/answers", Why: "models are admitted without knowing who asks by them"},
	{From: "...", To: "indexnode/nodetest", Tests: true, Why: "records and questions of tests"},
	{From: "indexnode/store", To: "schemas", Tests: true, Why: "the store knows nothing of schemas beyond the fingerprint"},
	{From: "indexnode/store", To: "relevance", Why: "the store orders by time; scores are the query's"},
	{From: "partitioner", To: "relevance", Why: "ingest does not rank"},
	{From: "relevance", To: "codegen", Tests: true, Why: "serving needs no generator"},
	{From: "schemas", To: "relevance", Why: "records know nothing of models"},

	{From: "...", To: "ops", Except: []string{"ops"}, Why: "alerts and dashboards are files for other programs; nothing is built on them"},
	{From: "...", To: "internal/minicluster", Except: []string{"cmd", "internal/minicluster"}, Tests: true, Why: "it is every role in one process, for the demo and for tests"},
	{From: "...", To: "internal/oracle", Except: []string{"cmd/millrace/bench"}, Tests: true, Why: "the oracle judges; nothing serves from it"},
	{From: "...", To: "internal/expr/celref", Except: []string{"internal/oracle"}, Tests: true, Why: "the reference judges the kernels; nothing serves from it"},
	{From: "...", To: "internal/sample/tweets", Tests: true, Why: "posts of tests"},
	{From: "...", To: "internal/sample", Except: []string{"cmd", "internal/minicluster"}, Tests: true, Why: "the sample is for the demo and for tests"},

	{From: "...", To: "internal/secure/authority", Except: []string{"internal/cluster/etcdtest"}, Tests: true, Why: "certificates of tests"},
	{From: "internal/cluster/documents", To: "internal/cluster/artefacts", Why: "documents are kept without knowing what they mean"},
	{From: "internal/cluster/secrets", To: "internal/cluster/documents", Why: "secrets are no documents"},
	{From: "internal/cluster/brokers", To: "internal/cluster/documents", Why: "what a broker goes by is told to the room of brokers, which reads none of it"},
	{From: "internal/cluster/steering", To: "internal/cluster/members", Why: "who hosts what is compared with the map alone"},
	{From: "...", To: "internal/cluster/restoration", Except: []string{"cmd/cli/steer"}, Tests: true, Why: "only people restore a cluster"},
	{From: "...", To: "internal/figure/pagecache", Tests: true, Why: "benchmarks of a cold disk"},
	{From: "...", To: "internal/cluster/maptest", Tests: true, Why: "maps of tests"},
	{From: "...", To: "internal/cluster/etcdtest", Except: []string{"cmd/cli/clitest"}, Tests: true, Why: "an etcd of tests"},
	{From: "...", To: "cmd/cli/clitest", Tests: true, Why: "what tests of the command line share"},

	{From: "client", To: "internal/cluster", Why: "callers compile the client in; it stays small"},
	{From: "client", To: "internal/kafka", Why: "callers compile the client in; it stays small"},
	{From: "client", To: "schemas", Why: "callers compile the client in; it stays small"},
	{From: "client", To: "relevance", Why: "callers compile the client in; it stays small"},
	{From: "client", To: "partitioner", Why: "callers compile the client in; it stays small"},
	{From: "client", To: "indexnode", Why: "callers compile the client in; it stays small"},
	{From: "client", To: "broker", Tests: true, Why: "callers compile the client in; it stays small"},
}

// home says who may import a dependency. The longest Path that fits decides;
// one that no home fits is refused, so that a new dependency is a decision.
type home struct {
	Path  string   // a prefix of import paths, in whole elements
	In    []string // as in a ban
	Tests []string // packages whose tests may besides
	Why   string
}

var homes = []home{
	{Path: "github.com/cockroachdb/pebble/v2", In: []string{"indexnode/store"}, Tests: []string{"indexnode", "internal/minicluster", "internal/simulation"}, Why: "the store's engine; tests inject its file system"},
	{Path: "github.com/twmb/franz-go", In: []string{"internal/kafka"}, Tests: []string{"partitioner", "indexnode", "internal", "cmd"}, Why: "Kafka has one home"},
	{Path: "github.com/twmb/franz-go/pkg/kfake", In: []string{"internal/minicluster", "internal/kafka/kafkatest"}, Tests: []string{"internal", "partitioner", "indexnode", "cmd"}, Why: "the demo's log, and that of tests"},
	{Path: "github.com/hamba/avro/v2", In: []string{"schemas"}, Tests: []string{"internal/exposure"}, Why: "Avro has one home, where its traps are known"},
	{Path: "github.com/twmb/avro", Tests: []string{"schemas"}, Why: "an oracle for the other Avro library"},
	{Path: "cel.dev", In: []string{"internal/expr"}, Why: "CEL has one home"},
	{Path: "github.com/google/cel-go", Why: "its path moved to cel.dev/cel-go"},
	{Path: "go.etcd.io/etcd", In: []string{"internal/cluster"}, Tests: []string{"coordinator", "internal/experiments", "internal/simulation"}, Why: "etcd has one home; one in memory speaks its protocol, and those of tests lose keys"},
	{Path: "go.etcd.io/etcd/server/v3", In: []string{"internal/cluster", "internal/minicluster"}, Why: "the demo's etcd, and that of tests"},
	{Path: "go.etcd.io/etcd/api/v3/etcdserverpb", In: []string{"internal/cluster"}, Tests: []string{"internal/simulation"}, Why: "an etcd of tests raises the alarm that it is full"},
	{Path: "go.uber.org/zap", In: []string{"internal/cluster", "internal/minicluster"}, Why: "etcd logs with it; everything else uses slog"},
	{Path: "github.com/hashicorp/golang-lru/v2", In: []string{"indexnode/cache"}, Tests: []string{"indexnode/query"}, Why: "eviction order of the caches; the cache that benchmarks compare with"},
	{Path: "github.com/spf13", In: []string{"cmd"}, Why: "flags exist only in cmd"},
	{Path: "go.yaml.in/yaml/v3", In: []string{"internal/document"}, Why: "YAML has one home, where its bounds are"},
	{Path: "connectrpc.com/connect", In: []string{"api", "broker/doors", "internal/rpcerr"}, Tests: []string{"broker"}, Why: "the JSON edge"},
	{Path: "google.golang.org/grpc", In: []string{"api", "broker", "client", "indexnode", "internal/rpcerr", "internal/tracing", "internal/grpctune", "internal/nodewire", "internal/permit", "internal/minicluster", "internal/cluster", "cmd"}, Tests: []string{"coordinator", "internal/digest", "internal/simulation"}, Why: "who serves or calls; how etcd is dialled"},
	{Path: "google.golang.org/protobuf", In: []string{"api", "broker", "client", "indexnode", "internal/rpcerr", "internal/nodewire", "internal/oracle", "internal/minicluster", "cmd"}, Tests: []string{"schemas", "internal/permit", "internal/simulation"}, Why: "who speaks the wire; tests read back the Struct that schemas writes by hand, and call servers of nothing"},
	{Path: "google.golang.org/genproto", In: []string{"internal/rpcerr"}, Why: "details of an error"},
	{Path: "github.com/prometheus/client_golang", In: []string{"partitioner", "indexnode", "broker", "coordinator", "internal/admin", "internal/kafka", "internal/cluster", "internal/exposure", "internal/door", "internal/minicluster", "cmd"}, Tests: []string{"ops", "internal/permit", "internal/simulation"}, Why: "metrics of the roles; tests of alerts compare with them"},
	{Path: "github.com/prometheus/common", In: []string{"cmd/cli/doctor"}, Why: "doctor reads the metrics of roles"},
	{Path: "github.com/prometheus/client_model", In: []string{"broker/series"}, Tests: []string{"partitioner", "indexnode", "broker", "coordinator", "internal"}, Why: "to read metrics back, in tests and to let go of those that are what they were"},
	{Path: "go.opentelemetry.io/otel", In: []string{"indexnode", "broker", "internal/tracing", "cmd"}, Tests: []string{"internal/minicluster"}, Why: "traces of the roles"},
	{Path: "go.opentelemetry.io/otel/sdk", In: []string{"cmd"}, Tests: []string{"broker", "indexnode", "internal"}, Why: "who installs a provider of traces"},
	{Path: "go.opentelemetry.io/otel/exporters", In: []string{"cmd"}, Why: "where traces go; the binary has it already, from the demo's etcd"},
	{Path: "github.com/cespare/xxhash/v2", In: []string{".", "internal/partition", "internal/offsets", "indexnode/store", "broker/fanout"}, Why: "where an entity lives, digests of the store and of receipts, and who asks which node; nothing that a caller or a producer gains by choosing a hash, but of brokers that are older than the keys"},
	{Path: "github.com/dchest/siphash", In: []string{".", "broker/pagetoken"}, Why: "what a page served, and what it was asked: hashes under a secret key, of what callers and producers choose"},
	{Path: "github.com/twmb/murmur3", In: []string{"internal/slot"}, Tests: []string{"relevance/experiment"}, Why: "slots of experiments, as other languages can compute them"},
	{Path: "github.com/klauspost/compress", In: []string{"internal/sample", "internal/load", "relevance", "broker/doors", "indexnode/backups", "cmd"}, Why: "packed files, model packs, page tokens and tails of the log"},
	{Path: "github.com/parquet-go/parquet-go", In: []string{"cmd/cli"}, Why: "the form of exports that every tool for data reads"},
	{Path: "github.com/go-jose/go-jose/v4", In: []string{"internal/permit"}, Why: "signed tokens of callers"},
	{Path: "golang.org/x/time", In: []string{"broker/admission", "internal/backup", "partitioner"}, Why: "quotas of callers; the bound on a backup's bytes; what a schema registry is asked in vain"},
	{Path: "gocloud.dev", In: []string{"internal/backup/objects"}, Tests: []string{"internal/backup"}, Why: "object stores have one home"},
	{Path: "github.com/aws/aws-sdk-go-v2", In: []string{"internal/backup/objects"}, Why: "bounds what S3 answers, which the library above does not"},
	{Path: "golang.org/x/sys", In: []string{"indexnode/arena", "indexnode/cache", "indexnode/query", "internal/column", "relevance/trees", "internal/figure", "cmd/millrace/bench"}, Why: "mappings with huge pages; what the processor can; the page cache of benchmarks; when questions are due; the time of a processor"},
	{Path: "golang.org/x/sync", In: []string{"..."}, Why: "errgroup"},
	{Path: "github.com/cockroachdb/datadriven", Tests: []string{"..."}, Why: "tests by data files"},
}

// only says what alone the packages in In, but for their tests, may import: of
// this module, and of the standard library.
var only = []struct {
	In      string
	Imports []string
	Why     string
}{
	{In: "coordinator/plan", Imports: []string{module, module + "/internal/partition", "cmp", "fmt", "maps", "math", "slices"}, Why: "a plan is a pure function: no I/O, no clock, no goroutine, nothing of ours but the vocabulary"},
	{In: "internal/cluster/keyspace", Imports: []string{module + "/internal/partition", "cmp", "crypto/rand", "encoding/json", "errors", "fmt", "go.etcd.io/etcd/api/v3/mvccpb", "regexp", "strconv", "sync", "time"}, Why: "how etcd's state is judged is known without who reads it"},
	{In: "internal/cluster/dial", Imports: []string{module, module + "/internal/grpctune", module + "/internal/secure", "context", "errors", "github.com/prometheus/client_golang/prometheus", "go.etcd.io/etcd/api/v3/etcdserverpb", "go.etcd.io/etcd/api/v3/v3rpc/rpctypes", "go.etcd.io/etcd/client/v3", "google.golang.org/grpc", "google.golang.org/grpc/metadata", "google.golang.org/grpc/status", "log/slog", "math/rand/v2", "strings", "sync", "time"}, Why: "how etcd is called is known without what is asked"},
	{In: "internal/cluster/ledger", Imports: []string{module + "/internal/audit", module + "/internal/cluster/keyspace", module + "/internal/line", "bytes", "encoding/json", "errors", "fmt", "regexp", "slices", "strconv", "strings", "time", "unicode", "unicode/utf8"}, Why: "what is known of an artefact is a value: no etcd, no disk"},
	{In: "internal/cluster/datadir", Imports: []string{module, "context", "crypto/rand", "encoding/json", "errors", "fmt", "github.com/prometheus/client_golang/prometheus", "io", "io/fs", "log/slog", "maps", "os", "path/filepath", "sync", "syscall", "time"}, Why: "what is kept on disk is known without etcd"},
	{In: "internal/cluster/topology", Imports: []string{module, module + "/internal/cluster/datadir", module + "/internal/cluster/keyspace", module + "/internal/partition", "bytes", "cmp", "encoding/binary", "encoding/json", "errors", "fmt", "hash/fnv", "iter", "maps", "math", "math/bits", "os", "slices", "strconv", "strings", "time", "unicode/utf8"}, Why: "who hosts what is values: no etcd, no goroutine"},
	{In: "broker/limits", Imports: []string{module, module + "/api/millrace/feed/v1", "errors", "fmt", "google.golang.org/protobuf/types/known/structpb", "math", "regexp", "strings", "unicode/utf8"}, Why: "what a request may hold is known before anything else of it"},
	{In: "indexnode/store/blob", Imports: []string{module, "encoding/binary", "errors", "fmt", "github.com/cespare/xxhash/v2", "math/bits", "slices", "unsafe"}, Why: "what a timeline is on disk is bytes: no engine, no state"},
	{In: "compute", Imports: []string{module, module + "/internal/column", "encoding/binary", "fmt", "math", "math/bits", "math/rand/v2", "slices", "strconv", "sync", "unicode/utf8", "unsafe"}, Why: "the runtime of generated code, in repositories of its own too, knows neither models nor schemas"},
	{In: "relevance/models", Imports: []string{module + "/compute", "math", "slices", "strings"}, Why: "generated code is made of the one public runtime"},
	{In: "schemas/decoders", Imports: []string{module + "/compute"}, Why: "generated code is made of the one public runtime"},
	{In: "internal/stats", Imports: []string{"cmp", "fmt", "maps", "math", "slices"}, Why: "statistics are pure functions that can be read beside their papers: nothing of ours at all"},
}

// rooms are the packages of the command line, below cmd/cli, and which of each
// other they import. cmd/cli itself joins them all.
var rooms = map[string][]string{
	// what commands share
	"display":     nil,
	"version":     {"display"},
	"schemafiles": nil,
	"config":      {"display"},
	"reach":       {"config", "display"},
	"clusters":    {"reach"},
	"command":     {"clusters", "config", "display"},
	"leans":       {"clusters", "command", "display", "reach"},
	"shadows":     {"command", "display", "reach"},
	// families of commands
	"ask":         {"command", "display", "reach"},
	"export":      {"command", "display", "reach"},
	"models":      {"clusters", "command", "display", "export", "reach", "schemafiles"}, // export: the rows that a replay reads
	"rollouts":    {"clusters", "command", "display", "leans", "reach", "schemafiles", "shadows"},
	"experiments": {"ask", "clusters", "command", "display", "leans", "reach", "shadows"},           // ask: attributes of viewers
	"topics":      {"clusters", "command", "display", "reach", "rollouts", "schemafiles"},           // rollouts: who reads what a schema changes
	"doctor":      {"clusters", "command", "display", "reach", "rollouts", "topics", "experiments"}, // what each says is wrong with its own
	"steer":       {"clusters", "command", "display"},
	"operate":     {"clusters", "command", "display"},
	"backups":     {"clusters", "command", "display", "reach"},
	// roles
	"roles": {"clusters", "command", "config", "leans", "reach", "experiments", "version"}, // leans: what steps of experiments wait for; experiments: which acts guards count
	"dev":   {"ask", "command", "leans", "reach", "schemafiles", "version"},
	// tests
	"clitest": nil,
}

// unsafeIn lists who may import unsafe.
var unsafeIn = map[string]string{
	"api":                 "generated protobuf",
	"broker/shadows":      "strings of a test that change when the memory of an answer is used again",
	"internal/column":     "strings that share a slab's heap",
	"relevance/trees":     "the walk of eight rows, whose places are checked when a model is read",
	"compute":             "strings built in a buffer for a look-up",
	"schemas":             "map keys and list items that point into a body while it is decoded",
	"indexnode":           "entities that share the bytes of a request",
	"internal/ahead":      "addresses for the processor",
	"indexnode/arena":     "memory of the system, not of the Go heap",
	"indexnode/store":     "strings that share a blob while it is read",
	"internal/nodewire":   "strings that share an answer's bytes",
	"internal/simulation": "linkname: etcd's client waits for a channel that is made before the bubble",
	"internal/grpctune":   "bytes handed to the kernel without the scheduler in between",
}

// file is a Go file of the module and what it imports.
type file struct {
	name    string
	dir     string // "." is the root
	test    bool
	imports []string
	syntax  *ast.File
}

// files parses every Go file of the module, whatever its build tags: an exec'd
// `go list` would be served stale from the test cache.
func files(t *testing.T, mode parser.Mode) []file {
	t.Helper()
	var all []file
	walk(t, func(name string) {
		if path.Ext(name) != ".go" {
			return
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, mode)
		if err != nil {
			t.Fatal(err)
		}
		f := file{name: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), syntax: syntax}
		for _, i := range syntax.Imports {
			f.imports = append(f.imports, strings.Trim(i.Path.Value, `"`))
		}
		all = append(all, f)
	})
	if len(all) < 20 {
		t.Fatalf("only %d Go files; the walk is broken", len(all))
	}
	return all
}

// walk calls do for every file that belongs to the project.
func walk(t *testing.T, do func(name string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			hidden := strings.HasPrefix(d.Name(), ".") && name != "." && name != ".ci"
			if hidden || d.Name() == "testdata" || name == "bin" || name == "data" {
				return filepath.SkipDir
			}
			return nil
		}
		do(name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// under reports whether p is one of trees or below it.
func under(p string, trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool {
		return tree == "..." || p == tree || strings.HasPrefix(p, tree+"/")
	})
}

func TestBans(t *testing.T) {
	for _, f := range files(t, parser.ImportsOnly) {
		for _, i := range f.imports {
			to, ours := strings.CutPrefix(i, module+"/")
			if !ours {
				continue
			}
			for _, b := range bans {
				if under(f.dir, b.From) && under(to, b.To) && !under(f.dir, b.Except...) && !under(f.dir, b.To) && !(f.test && b.Tests) {
					t.Errorf("%s imports %s: %s", f.name, to, b.Why)
				}
			}
		}
	}
}

func TestOnly(t *testing.T) {
	for _, f := range files(t, parser.ImportsOnly) {
		for _, o := range only {
			for _, i := range f.imports {
				if under(f.dir, o.In) && !f.test && !slices.Contains(o.Imports, i) {
					t.Errorf("%s imports %s: %s", f.name, i, o.Why)
				}
			}
		}
	}
}

func TestRooms(t *testing.T) {
	const cli = "cmd/cli/"
	used := map[string]bool{}
	for _, f := range files(t, parser.ImportsOnly) {
		room, below := strings.CutPrefix(f.dir, cli)
		if !below || f.test {
			continue
		}
		if _, known := rooms[room]; !known {
			t.Errorf("%s is of no room; deps_test.go says which there are", f.name)
		}
		used[room] = true
		for _, i := range f.imports {
			other, ours := strings.CutPrefix(i, module+"/"+cli)
			if used[room+" "+other] = ours; ours && !slices.Contains(rooms[room], other) {
				t.Errorf("%s imports %s; write into deps_test.go why, if it must", f.name, i)
			}
		}
	}
	for room, others := range rooms {
		if !used[room] {
			t.Errorf("there is no room %s", room)
		}
		for _, other := range others {
			if !used[room+" "+other] {
				t.Errorf("%s does without %s now", room, other)
			}
		}
	}
}

// maxFiles bounds the files of a package that are not tests, whatever their build
// tags: past it nobody tells them apart, and it has parts with names of their own.
const maxFiles = 15

func TestPackagesHaveFewFiles(t *testing.T) {
	count := map[string]int{}
	for _, f := range files(t, parser.PackageClauseOnly) {
		if !f.test {
			count[f.dir]++
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(count)) {
		if n := count[dir]; n > maxFiles {
			t.Errorf("%s has %d files that are not tests, and may have %d; give a part of it a package of its own", dir, n, maxFiles)
		}
	}
}

// Everything imports the vocabulary.
func TestRootImportsNothingOfOurs(t *testing.T) {
	for _, f := range files(t, parser.ImportsOnly) {
		for _, i := range f.imports {
			if f.dir == "." && !f.test && strings.HasPrefix(i, module+"/") {
				t.Errorf("%s imports %s: the vocabulary imports nothing of ours", f.name, i)
			}
		}
	}
}

func TestDependenciesStayHome(t *testing.T) {
	for _, f := range files(t, parser.ImportsOnly) {
		for _, i := range f.imports {
			first, _, _ := strings.Cut(i, "/")
			if !strings.Contains(first, ".") || i == module || strings.HasPrefix(i, module+"/") {
				continue
			}
			h := homeOf(i)
			switch {
			case h == nil:
				t.Errorf("%s imports %s, which has no home; give it one in deps_test.go, and a reason", f.name, i)
			case !under(f.dir, h.In...) && !(f.test && under(f.dir, h.Tests...)):
				t.Errorf("%s imports %s, whose home is %v (in tests also %v): %s", f.name, i, h.In, h.Tests, h.Why)
			}
		}
	}
}

// homeOf returns the home with the longest path that fits, or nil.
func homeOf(dependency string) (best *home) {
	for i := range homes {
		if under(dependency, homes[i].Path) && (best == nil || len(homes[i].Path) > len(best.Path)) {
			best = &homes[i]
		}
	}
	return best
}

func TestUnsafeIsListed(t *testing.T) {
	used := map[string]bool{}
	for _, f := range files(t, parser.ImportsOnly) {
		if !slices.Contains(f.imports, "unsafe") {
			continue
		}
		listed := false
		for dir := range unsafeIn {
			if under(f.dir, dir) {
				listed, used[dir] = true, true
			}
		}
		if !listed {
			t.Errorf("%s imports unsafe and is not listed in deps_test.go", f.name)
		}
	}
	for dir := range unsafeIn {
		if !used[dir] {
			t.Errorf("%s does without unsafe now; take it off the list in deps_test.go", dir)
		}
	}
}

// In ARCHITECTURE.md every package stands in the table of packages, in the left
// column: by its path or, behind "with", by its path below the name before that.
// The root is "root".
func TestArchitectureNamesPackages(t *testing.T) {
	page, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Packages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := map[string]bool{".": true}
	quoted := regexp.MustCompile("`([^`]+)`")
	for row := range strings.Lines(section) {
		cells := strings.Split(row, "|")
		if len(cells) < 3 {
			continue
		}
		whole, below, _ := strings.Cut(cells[1], " with ")
		last := ""
		for _, m := range quoted.FindAllStringSubmatch(whole, -1) {
			last = m[1]
			named[last] = true
		}
		for _, m := range quoted.FindAllStringSubmatch(below, -1) {
			named[last+"/"+m[1]] = true
		}
	}
	there := map[string]bool{}
	for _, f := range files(t, parser.PackageClauseOnly) {
		if !f.test && !named[f.dir] {
			t.Errorf("ARCHITECTURE.md, Packages, does not name %s", f.dir)
			named[f.dir] = true // once
		}
		for dir := f.dir; dir != "."; dir = path.Dir(dir) {
			there[dir] = true
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(named)) {
		if dir != "." && !there[dir] {
			t.Errorf("ARCHITECTURE.md, Packages, names %s, where there is no Go", dir)
		}
	}
}
