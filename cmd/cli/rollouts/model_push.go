package rollouts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
)

func pushModel(avsc *[]string) *cobra.Command {
	var p push
	c := rolloutCommand(&cobra.Command{
		Use:   "push PACK",
		Short: "Hand a pack to every index node and, once all have admitted it, let it serve",
		Long: `Publishes a pack, waits until every index node that has partitions has admitted
it, prints what each answered, and then lets it serve: from one moment to the
next, on every broker that hears etcd, which the last line tells. If a node refuses it or is not heard in time, what serves
goes on, and the command fails. A version that is not newer than the one that
serves (2 is newer than 1, 1.10 than 1.9 and than 1.10-rc1, 01 no more than 1), or
costs over fifty times as much, is published, and the command fails: it serves only
with --serve. So it is with one that changes what a variant of a
running experiment is ranked by, where the experiment compares models and what
serves is not condemned. One that lacks a weight which a variant of an
experiment sets does not serve while there is that experiment.`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, r *rollout, args []string) error {
		pack, err := packToPush(args[0], *avsc)
		if err != nil {
			return err
		}
		return r.push(ctx, pack, p)
	})
	c.Flags().BoolVar(&p.serve, "serve", false, "let it serve even if it is not newer, costs far more, or changes a variant of a running experiment")
	c.Flags().BoolVar(&p.only, "no-serve", false, "only publish it")
	c.Flags().DurationVar(&p.timeout, "timeout", 30*time.Second, "how long to wait for the index nodes")
	c.MarkFlagsMutuallyExclusive("serve", "no-serve")
	return c
}

// packToPush opens a pack, a model with its manifest. It checks the model if the schemas
// that the manifest names are built in or among the files avsc. Otherwise only the index
// nodes, which know those schemas, check it.
func packToPush(name string, avsc []string) (*modelpack.Pack, error) {
	_, unsealed := os.Stat(filepath.Join(name, modelpack.ManifestFile))
	if info, err := os.Stat(name); err == nil && info.IsDir() && unsealed != nil {
		return nil, fmt.Errorf("%s is not sealed; run millrace model seal %s", name, name)
	}
	pack, err := modelpack.Open(name)
	if err == nil {
		err = relevance.CheckName(pack.Manifest.Name)
	}
	if err != nil {
		return nil, err
	}
	snapshot, err := schemafiles.Snapshot(avsc)
	if err != nil {
		return nil, err
	}
	go func() { _, _ = pack.Tar() }() // makes the archive, which the pack keeps for publish: for a large pack this takes as long as the check
	if known := relevance.SchemasOf(snapshot); pack.KnownTo(known) {
		_, err = modelpack.Validate(pack, known)
	}
	return pack, err
}

// push has the flags of model push.
type push struct {
	serve, only bool          // --serve, --no-serve
	timeout     time.Duration // how long to wait for the index nodes
}

// errHeld says that a version is published, and that it would serve only with --serve.
var errHeld = errors.New("is published and does not serve")

// push publishes a pack, waits until every index node has admitted it, and then lets it
// serve, unless a flag or a reason not to (see hold) keeps it from serving.
func (r *rollout) push(ctx context.Context, pack *modelpack.Pack, p push) error {
	before, _ := r.Models.Served(pack.Manifest.Name)
	v, err := r.publish(ctx, pack)
	if err != nil {
		return err
	}
	if err := r.await(ctx, v, p.timeout); err != nil {
		if before.Version != "" && before != v {
			err = fmt.Errorf("%w; %s serves on", err, before)
		}
		return err
	}
	if err := r.tellLacks(ctx, v); err != nil {
		return err
	}
	if err := r.absolve(ctx, v); err != nil {
		return err
	}
	if err := r.showUses(ctx, v.Name); err != nil {
		return err
	}
	changes, err := r.Changes(ctx, before, v)
	if err != nil {
		return err
	}
	hold := display.Joined(r.hold(before, v), changes)
	switch {
	case p.only:
		fmt.Fprintf(r.out, "%s is published and does not serve\n", v)
	case before == v:
		fmt.Fprintf(r.out, "%s serves already\n", v)
	case hold != "" && !p.serve:
		if err := r.Feeds.Keeps(ctx, leans.Change{Model: v}); err != nil { // then --serve would not help
			return fmt.Errorf("%s is published and does not serve: %w", v, err)
		}
		return held(v, hold)
	default:
		if hold != "" {
			fmt.Fprintf(r.out, "%s: %s\n", v, hold)
		}
		if err := r.letServe(ctx, before, v, p.serve); err != nil {
			return err
		}
		fmt.Fprintf(r.out, "%s serves; ask for it by the field model, or name it in a feed\n", v)
		return leans.TellFaults(ctx, r.out, r.Feeds.Cluster, nil)
	}
	return nil
}

// held returns [errHeld] with the reason.
func held(v artefacts.Version, why string) error {
	return fmt.Errorf("%s %w: %s; add --serve to let it serve all the same, or --no-serve if it is only to be published", v, errHeld, why)
}

// letServe lets v serve in place of before. It asks once more what that changes of
// running experiments, while no experiment can change: one may have begun since the user
// was told. If it changes any and meant is false, the error is errHeld.
func (r *rollout) letServe(ctx context.Context, before, v artefacts.Version, meant bool) error {
	err := r.Feeds.Keeping(ctx, func(ctx context.Context) error {
		if err := r.Feeds.Keeps(ctx, leans.Change{Model: v}); err != nil {
			return err
		}
		changes, err := r.Changes(ctx, before, v)
		if err == nil && changes != "" && !meant {
			err = held(v, changes)
		}
		return err
	}, func(ctx context.Context) error { return r.Models.Serve(ctx, v, &before, r.who) })
	if err == nil || errors.Is(err, errHeld) {
		return err
	}
	now, _ := r.Models.Served(v.Name)
	return unserved(v, now, r.Models.Has(v), err)
}

// unserved returns the error for a published version v that this push could not let serve
// because of err. now is the version that serves, and there is whether v still exists:
// others may have changed both meanwhile.
func unserved(v, now artefacts.Version, there bool, err error) error {
	switch {
	case now == v:
		return fmt.Errorf("%s serves: somebody else let it serve at the same time; look at its history", v)
	case !there && errors.Is(err, artefacts.ErrNoVersion):
		return fmt.Errorf("%s was published, and somebody dropped it at the same time: push it again if it is needed", v)
	}
	return fmt.Errorf("%s is published and does not serve: %w", v, err)
}

// publish stores a pack in etcd as a version that does not serve yet. If the version exists
// with the same files, it returns that one, even if its archive has other bytes.
func (r *rollout) publish(ctx context.Context, pack *modelpack.Pack) (artefacts.Version, error) {
	tar, err := pack.Tar()
	if err != nil {
		return artefacts.Version{}, err
	}
	name, version := pack.Manifest.Name, pack.Manifest.Version
	before := r.Models.All()[name]
	v, fresh, err := r.Models.Publish(ctx, name, version, tar, r.who)
	if errors.Is(err, artefacts.ErrOtherBytes) {
		if same, ok := r.samePack(ctx, pack); ok {
			v, err = same, nil
		}
	}
	if err != nil {
		return v, err
	}
	if fresh {
		fmt.Fprintf(r.out, "%s is published, %d bytes, checksum %.12s\n", v, len(tar), v.Sum)
		for _, old := range before {
			if !slices.Contains(r.Models.All()[name], old) {
				fmt.Fprintf(r.out, "%s is dropped to make room%s\n", old, r.pagesOf(ctx, old))
			}
		}
	} else {
		fmt.Fprintf(r.out, "%s is published already, with the same content\n", v)
	}
	return v, nil
}

// pagesOf says that viewers have to begin their feeds anew, because v, which was dropped,
// ranked their first pages; "" if there can be no such pages.
func (r *rollout) pagesOf(ctx context.Context, v artefacts.Version) string {
	events, err := r.Models.History(ctx, v.Name)
	if err != nil {
		return ""
	}
	for gone, e := range slices.Backward(events) {
		if e.What == ledger.Dropped && e.Sum == v.Sum && time.Now().Before(pagesUntil(events[:gone], v)) {
			return ": all that are kept ranked within a day; who began a feed by it and asks for more is told to begin anew"
		}
	}
	return ""
}

// samePack returns the published version that has the name and version of a pack, and
// whether its files are the same.
func (r *rollout) samePack(ctx context.Context, pack *modelpack.Pack) (artefacts.Version, bool) {
	v, err := r.version(pack.Manifest.Name, pack.Manifest.Version)
	if err != nil {
		return v, false
	}
	have, err := r.pack(ctx, v)
	return v, err == nil && have.Checksum == pack.Checksum
}

// hold says why next should not replace the serving version without --serve: it is not
// newer, or it costs far more. "" if it may.
func (r *rollout) hold(serving, next artefacts.Version) string {
	if serving.Version == "" || serving == next {
		return ""
	}
	switch c := relevance.CompareVersions(next.Version, serving.Version); {
	case c == 0, sameNumber(next.Version, serving.Version):
		return fmt.Sprintf("its version says no more than %s, which serves, and not which of them is newer", serving.Version)
	case c < 0:
		return fmt.Sprintf("it is older than %s, which serves", serving.Version)
	}
	now, before := r.cost(next), r.cost(serving)
	if before == 0 {
		return "" // no node has said what the serving version costs, so there is nothing to compare with
	}
	if err := relevance.MuchSlower(now, before); err != nil {
		return err.Error()
	}
	return ""
}

// sameNumber reports whether two versions differ only in ".0" at the end, such as 1 and
// 1.0: they do not say which of them is newer.
func sameNumber(a, b string) bool {
	for _, v := range []*string{&a, &b} {
		for strings.HasSuffix(*v, ".0") {
			*v = strings.TrimSuffix(*v, ".0")
		}
	}
	return a == b
}

// cost returns what scoring a record by a version costs, in operations. It takes the
// estimate of any node that has one: it is the same on all. It returns 0 if no node has one.
func (r *rollout) cost(v artefacts.Version) int {
	for _, all := range r.heard.Current() {
		for _, a := range all {
			if a.Of(v) && a.Cost > 0 {
				return a.Cost
			}
		}
	}
	return 0
}

// await waits until every node that has partitions has answered, for timeout at most, and
// prints the answers. The error says how many nodes have not admitted the version. A node
// that refuses it may admit it later, when it has received a schema that the model needs.
// await waits half the timeout for that.
func (r *rollout) await(ctx context.Context, v artefacts.Version, timeout time.Duration) error {
	end, half := time.After(timeout), time.After(timeout/2)
	patient := true
	for {
		changed, moved, models := r.heard.Changed(), r.maps.Changed(), r.Models.Changed()
		if !r.Models.Has(v) {
			return fmt.Errorf("%s was dropped while this waited for the index nodes, and does not serve: millrace model history %s says by whom; to publish it again, run the same push again", v, v.Name)
		}
		all := r.answers(v)
		open := func(a nodeAnswer) bool { return a.State == stateUnheard || patient && a.State != stateAdmitted }
		if len(all) > 0 && !slices.ContainsFunc(all, open) {
			return r.tell(v, all)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return r.tell(v, all)
		case <-half:
			patient = false
		case <-changed:
		case <-moved:
		case <-models:
		}
	}
}

// tell prints the answers of nodes, equal refusals together. The error says how many have
// not admitted the version, and what to do; nil if all have.
func (r *rollout) tell(v artefacts.Version, all []nodeAnswer) error {
	if len(all) == 0 {
		return fmt.Errorf("%s is published and does not serve: no index node has partitions; run millrace cluster assign", v)
	}
	refused, unheard := 0, 0
	for _, a := range all {
		switch a.State {
		case stateAdmitted:
		case stateUnheard:
			unheard++
		default:
			refused++
		}
	}
	t := display.NewTable(r.out)
	for i, a := range all {
		if a.Why != "" && slices.ContainsFunc(all[:i], a.same) {
			continue // it is printed with the first node that said so
		}
		nodes := string(a.Node)
		for _, other := range all[i+1:] {
			if a.Why != "" && a.same(other) {
				nodes += ", " + string(other.Node)
			}
		}
		for says := range strings.SplitSeq(a.String(), "\n") {
			t.Printf("%s\t%s\n", nodes, says)
			nodes = ""
		}
	}
	if err := t.Flush(); err != nil || refused+unheard == 0 {
		return err
	}
	lack := fmt.Sprintf("of %d index nodes %d refused it and %d were not heard; the nodes go on trying", len(all), refused, unheard)
	if now, _ := r.Models.Served(v.Name); now == v {
		return fmt.Errorf("%s serves already: %s%s", v, lack, r.awayOf(all))
	}
	return fmt.Errorf("%s is published and does not serve: %s, and nothing lets it serve by itself: once millrace model list says that all have admitted it, now %d of %d, run the same millrace model push again, which then serves it at once%s", v, lack, len(all)-refused-unheard, len(all), r.awayOf(all))
}

// awayOf says which nodes have not answered because they are not alive, and what to do;
// "" if there are none.
func (r *rollout) awayOf(all []nodeAnswer) string {
	var away []string
	for _, a := range all {
		if a.State == stateUnheard && !r.maps.Current().Alive(a.Node) {
			away = append(away, string(a.Node))
		}
	}
	if len(away) == 0 {
		return ""
	}
	return fmt.Sprintf("\naway: %s. A push waits for every node that has partitions: start it, move its partitions with millrace node drain, or give it up with millrace node remove if it is gone for good", strings.Join(away, ", "))
}

// lacked are the fields that are empty in all records of a content type that nodes looked
// at.
type lacked struct {
	records int      // how many records the nodes looked at
	fields  []string // names
}

// lacksOf returns, by content type, the fields that v reads and that every node found
// empty in all records that it looked at.
func (r *rollout) lacksOf(v artefacts.Version) map[string]*lacked {
	types := map[string]*lacked{}
	for _, all := range r.heard.Current() {
		for _, a := range all {
			if !a.Of(v) {
				continue
			}
			for _, l := range a.Lacks {
				of := types[l.Type]
				if of == nil {
					types[l.Type] = &lacked{l.Records, l.Fields}
					continue
				}
				of.records += l.Records
				of.fields = slices.DeleteFunc(slices.Clone(of.fields), func(f string) bool { return !slices.Contains(l.Fields, f) })
			}
		}
	}
	maps.DeleteFunc(types, func(_ string, of *lacked) bool { return len(of.fields) == 0 })
	return types
}

// tellLacks prints which fields that v reads are empty in all records of a content type,
// with the feeds that have the model rank that type. It refuses nothing: records that
// fill the fields may be on their way.
func (r *rollout) tellLacks(ctx context.Context, v artefacts.Version) error {
	types := r.lacksOf(v)
	if len(types) == 0 {
		return nil
	}
	feeds, err := r.Feeds.Definitions(ctx)
	if err != nil {
		return err
	}
	for _, t := range slices.Sorted(maps.Keys(types)) {
		of := types[t]
		where := ""
		if names := feedsRanking(feeds, v.Name, t); len(names) > 0 {
			where = " (feed " + strings.Join(names, ", feed ") + ")"
		}
		fmt.Fprintf(r.out, "note: no %s%s of %d that index nodes looked at has anything in record.%s\n", t, where, of.records, strings.Join(of.fields, ", record."))
	}
	return nil
}

// feedsRanking returns the feeds in which a model ranks records of a type, for viewers or
// as a shadow (for comparison alone); by name.
func feedsRanking(all map[string]leans.Definition, model, t string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		ranks := f.Fault == nil && (f.Model == model || slices.Contains(f.Shadow, model))
		if ranks && (len(f.Types) == 0 || slices.Contains(f.Types, millrace.ContentType(t))) {
			names = append(names, name)
		}
	}
	return names
}
