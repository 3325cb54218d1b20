package main

import (
	"context"

	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/schemas"
)

// acts are what AdminService changes: each is called with apply and without.
var acts = map[string]func(context.Context, nodev1.AdminServiceClient, bool) error{
	"DeleteRecords": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.DeleteRecords(ctx, &nodev1.DeleteRecordsRequest{Apply: apply, Tombstones: []*nodev1.Tombstone{
			{Id: "a", Type: "post", Entities: []string{"member:1"}}, {Id: "b", Type: "post", Entities: []string{"member:1"}},
		}})
		return err
	},
	"DropCache": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.DropCache(ctx, &nodev1.DropCacheRequest{Entity: "member:1", Apply: apply})
		return err
	},
	"PauseIngest": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.PauseIngest(ctx, &nodev1.PauseIngestRequest{ForMs: 3600_000, Apply: apply})
		return err
	},
	"ResumeIngest": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.ResumeIngest(ctx, &nodev1.ResumeIngestRequest{Apply: apply})
		return err
	},
	"QuarantinePartition": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.QuarantinePartition(ctx, &nodev1.QuarantinePartitionRequest{Partition: 17, Why: "a test", Apply: apply})
		return err
	},
	"ReleasePartition": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.ReleasePartition(ctx, &nodev1.ReleasePartitionRequest{Partition: 17, Apply: apply})
		return err
	},
	"ReplayDeadLetters": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.ReplayDeadLetters(ctx, &nodev1.ReplayDeadLettersRequest{Offsets: []int64{0}, Apply: apply})
		return err
	},
}

// looks are what AdminService only shows.
var looks = []string{"ReadTimeline", "ReadHistory", "FindRecords"}

// others are the methods of the nodes' other service: what is written down of
// each that changes something.
var others = map[string]string{
	"Query": "", "GetSchema": "", "Hot": "", "Digests": "", "ReadPartition": "", "WitnessPartition": "",
	"CheckPartition":   "a replica that it takes out",
	"CondemnPartition": "every order: see TestReplicaThatDiffersIsFoundAndRenewed",
}

// Every method of AdminService is for operators alone. Each that changes
// something touches nothing without apply, and with it is in the audit log
// first: what cannot be written down is not done.
func TestEveryActIsAuthorisedAndAudited(t *testing.T) {
	o := startOperated(t)
	o.load(`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`)
	p, err := kafka.NewProducer(kafka.At(o.Kafka), "", nil)
	o.must(err)
	defer p.Close()
	body, err := schemas.Note().EncodeJSON([]byte(`{"id":"z","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`))
	o.must(err)
	p.Produce(o.ctx, kafka.Outgoing{Topic: "dead-letters", Value: schemas.Frame(schemas.Note().Fingerprint(), body), Headers: []kafka.Header{
		{Key: kafka.HeaderReason, Value: []byte("unknown-schema")}, {Key: kafka.HeaderSource, Value: []byte(o.ContentTopic() + "/0/0")},
	}})
	o.must(p.Flush(o.ctx))
	cm := Common{Etcd: []string{o.Etcd}}
	at, err := cm.operate(o.ctx)
	o.must(err)
	defer at.close()
	first, err := at.node("node-1")
	o.must(err)
	conn, err := grpc.NewClient(first.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	o.must(err)
	defer conn.Close()
	node := nodev1.NewAdminServiceClient(conn)

	var methods []string
	for _, m := range nodev1.AdminService_ServiceDesc.Methods {
		methods = append(methods, m.MethodName)
	}
	for _, m := range nodev1.AdminService_ServiceDesc.Streams {
		methods = append(methods, m.StreamName)
	}
	slices.Sort(methods)
	for _, m := range nodev1.NodeService_ServiceDesc.Methods {
		if _, ok := others[m.MethodName]; !ok {
			t.Errorf("nothing says what is written down of %s", m.MethodName)
		}
	}
	for _, m := range methods {
		if may := permit.RolesFor("/millrace.node.v1.AdminService/" + m); !slices.Equal(may, []permit.Role{permit.Operator}) {
			t.Errorf("%s is for %v", m, may)
		}
		act, is := acts[m]
		if is == slices.Contains(looks, m) {
			t.Errorf("nothing says whether %s changes something: add it to acts or to looks", m)
		}
		if !is {
			continue
		}
		before := len(o.audited())
		o.must(act(o.ctx, node, false))
		if all := o.audited(); len(all) != before {
			t.Errorf("%s is written down, and so was done perhaps, without apply: %+v", m, all[before:])
		}
		o.must(act(o.ctx, node, true))
		all := o.audited()
		if len(all) == before {
			t.Errorf("%s is not in the audit log", m)
		}
		for _, e := range all[before:] {
			if e.Time.IsZero() || e.Who == "" || e.Act == "" || e.On == "" || e.Before == "" || e.After == "" || e.Fault != "" {
				t.Errorf("%s: the entry lacks something: %+v", m, e)
			}
		}
	}
	o.must(acts["ResumeIngest"](o.ctx, node, true))
	waitFor(o.ctx, t, "the partition to be made anew", func() bool { return acts["QuarantinePartition"](o.ctx, node, false) == nil })
	o.must(acts["QuarantinePartition"](o.ctx, node, true)) // for ReleasePartition to have something to release
	o.must(o.logs["node-1"].Close())                       // from here on nothing can be written down
	for m, act := range acts {
		if m == "QuarantinePartition" { // of 17, which is quarantined already
			act = func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
				_, err := node.QuarantinePartition(ctx, &nodev1.QuarantinePartitionRequest{Partition: 18, Why: "a test", Apply: apply})
				return err
			}
		}
		if err := act(o.ctx, node, true); err == nil || !strings.Contains(err.Error(), "audit") {
			t.Errorf("%s without an audit log: %v", m, err)
		}
	}
	if paused := o.gauge("millrace_indexnode_ingest_paused_seconds"); paused > 0 {
		t.Error("what could not be written down was done")
	}
}

// How each command that changes something is kept from doing it by mistake.
const (
	isShown   = ""         // it changes nothing of a cluster
	isDry     = "dry"      // it shows what it would do unless --apply, and asks unless --yes
	isAsked   = "asked"    // its name says that it does something; it shows what, and asks unless --yes
	isForGood = "for good" // it shows what it would do unless --yes
	isKept    = "kept"     // a document of which every version is kept, with who and when, and a way back
	isOwn     = "own"      // it runs a process, or writes what the caller has in files
	isNamed   = "named"    // it does at once what its flags and arguments name, and refuses some of what hurts
)

var guards = map[string]string{
	"record delete": isDry, "cache drop": isDry, "ingest pause": isDry, "ingest resume": isDry, "deadletters replay": isDry, "partition quarantine": isDry, "partition release": isDry,
	"cluster page-keys": isDry, "cluster roll": isDry, "node add": isDry, "node drain": isDry, "node remove": isDry, "node replace": isDry, "node restart": isDry,
	"cluster apply": isAsked, "cluster cancel": isAsked, "cluster rollback": isAsked, "cluster pause": isAsked, "cluster resume": isAsked,
	"schema refuse": isForGood, "schema retire": isForGood, "topics adopt": isForGood, "topics forget": isForGood, "topics skip": isForGood,
	"feed define": isKept, "feed drop": isKept, "feed rollback": isKept,
	"model push": isKept, "model drop": isKept, "model release": isKept, "model rollback": isKept,
	"experiment define": isKept, "experiment drop": isKept, "experiment start": isKept, "experiment ramp": isKept, "experiment pause": isKept, "experiment hold": isKept, "experiment resume": isKept, "experiment stop": isKept,
	"cluster assign": isNamed, "cluster restore": isNamed, "trace": isNamed,
	"backup adopt": isNamed, "backup cut": isNamed, "backup cut-remove": isNamed, "backup restore": isNamed, "backup expire": isNamed, "backup drill": isNamed,
	"load": isOwn, "demo": isOwn, "dev": isOwn, "broker": isOwn, "indexnode": isOwn, "partitioner": isOwn, "coordinator": isOwn, "bench backing": isOwn, "bench handwritten": isOwn,
	"config check": isShown, "config reference": isShown, "context use": isOwn, "generate": isOwn, "model seal": isOwn, "model golden": isOwn, "model features": isOwn, "model replay": isOwn, "export exposures": isOwn, "model pull": isOwn, "model bench": isOwn,

	"backup cuts": isShown, "backup diff": isShown, "backup list": isShown, "backup show": isShown, "backup status": isShown, "backup verify": isShown,
	"cluster explain": isShown, "cluster plan": isShown, "cluster show": isShown, "cluster status": isShown, "connections": isShown, "context list": isShown, "context show": isShown,
	"deadletters list": isShown, "deadletters show": isShown, "doctor": isShown, "experiment diff": isShown, "experiment explain": isShown, "experiment history": isShown,
	"experiment list": isShown, "experiment rule": isShown, "experiment show": isShown, "experiment status": isShown, "feed diff": isShown, "feed history": isShown, "feed list": isShown,
	"feed shadows": isShown, "feed show": isShown, "model diff": isShown, "model history": isShown, "model list": isShown, "model show": isShown, "model validate": isShown,
	"node list": isShown, "partition check": isShown, "partition diff": isShown, "ready": isShown, "schema check": isShown, "schema list": isShown, "timeline get": isShown,
	"timeline history": isShown, "topics show": isShown, "version": isShown, "why": isShown,
}

// operators are the commands that ask AdminService: they teach by an example.
var operators = []string{"record delete", "cache drop", "ingest pause", "ingest resume", "deadletters replay", "partition quarantine", "partition release", "timeline get", "timeline history"}

// Every command says how it is kept from doing harm by mistake, and has the
// flags for it.
func TestEveryCommandIsGuarded(t *testing.T) {
	seen := map[string]bool{}
	commands(root(), func(path string, c *cobra.Command) {
		if c.HasSubCommands() {
			return
		}
		seen[path] = true
		guard, said := guards[path]
		if !said {
			t.Errorf("nothing says how %q is kept from doing harm", path)
		}
		has := func(flag string) bool { return c.Flag(flag) != nil }
		switch guard {
		case isDry:
			if !has("apply") || !has("yes") || c.Flag("apply").DefValue != "false" {
				t.Errorf("%q lacks --apply or --yes, or does it at once", path)
			}
		case isAsked, isForGood:
			if !has("yes") || c.Flag("yes").DefValue != "false" {
				t.Errorf("%q lacks --yes", path)
			}
		default:
			if has("apply") {
				t.Errorf("%q has --apply, and is not said to be dry without it", path)
			}
		}
		if slices.Contains(operators, path) && !strings.Contains(c.Example, "millrace "+path) {
			t.Errorf("the help of %q has no example", path)
		}
	})
	for path := range guards {
		if !seen[path] {
			t.Errorf("there is no command %q", path)
		}
	}
	for _, path := range operators {
		if !seen[path] {
			t.Errorf("there is no command %q", path)
		}
	}
}
