package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
)

// rollout is what the commands see that change which models there are.
type rollout struct {
	out    io.Writer
	models *cluster.Artefacts
	maps   *cluster.Watcher
	heard  *cluster.Admitted
	failed *cluster.Condemned
	feeds  *feedStore
	who    string
}

// openRollout reads the state of a cluster for the time of ctx.
func openRollout(ctx context.Context, cl *cluster.Client, out io.Writer) (*rollout, error) {
	r := &rollout{out: out, who: whoami()}
	var err error
	if r.models, err = cl.Artefacts(ctx, indexnode.ModelsKind); err != nil {
		return nil, err
	}
	if r.maps, err = cl.Watch(ctx); err != nil {
		return nil, err
	}
	if r.heard, err = cl.Admitted(ctx); err != nil {
		return nil, err
	}
	if r.failed, err = cl.Condemned(ctx); err != nil {
		return nil, err
	}
	r.models.Spare(func(v cluster.Version) bool { return r.ranksNowhere(v) != nil }, func(v cluster.Version, history []cluster.Event) bool {
		return time.Now().Before(pagesUntil(history, v))
	})
	versions, err := cl.Artefacts(ctx, broker.FeedsKind)
	r.feeds = &feedStore{cluster: cl, versions: versions}
	return r, err
}

// whoami is how the history names who runs the command.
func whoami() string {
	name, host := "somebody", "somewhere"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// rolloutCommand makes a command that runs on a cluster.
func rolloutCommand(c *cobra.Command, run func(ctx context.Context, r *rollout, args []string) error) *cobra.Command {
	onRollout(c, run)
	return c
}

// onRollout is rolloutCommand, and returns which cluster it runs on.
func onRollout(c *cobra.Command, run func(ctx context.Context, r *rollout, args []string) error) *Common {
	return onCluster(c, func(ctx context.Context, _ *Common, cl *cluster.Client, args []string) error {
		r, err := openRollout(ctx, cl, c.OutOrStdout())
		if err != nil {
			return err
		}
		note(c, r.models, r.maps, r.heard, r.feeds.versions)
		return withWay(run(ctx, r, args), modelWays)
	})
}

// rolloutLook is rolloutCommand of one that shows something.
func rolloutLook(c *cobra.Command, run func(ctx context.Context, r *rollout, output *form, args []string) error) *cobra.Command {
	var output form
	outputFlag(c, &output)
	return rolloutCommand(c, func(ctx context.Context, r *rollout, args []string) error { return run(ctx, r, &output, args) })
}

// rolloutAct is rolloutCommand of one that is dry without --apply.
func rolloutAct(c *cobra.Command, run func(ctx context.Context, r *rollout, args []string, meant meant) error) *cobra.Command {
	var a act
	rolloutCommand(c, func(ctx context.Context, r *rollout, args []string) error { return run(ctx, r, args, a.of(c)) })
	a.flags(c)
	return c
}

func rolloutCommands(avsc *[]string) []*cobra.Command {
	var out string
	pull := rolloutCommand(&cobra.Command{
		Use: "pull NAME [VERSION]", Short: "Write a pack to a file: the version that serves, or another", Args: cobra.RangeArgs(1, 2),
	}, func(ctx context.Context, r *rollout, args []string) error { return r.pull(ctx, args, out) })
	pull.Flags().StringVarP(&out, "out", "o", "", "the file; default NAME-VERSION.tar.zst")
	return []*cobra.Command{
		pushModel(avsc), pull,
		rolloutLook(&cobra.Command{Use: "list", Short: "The models there are, which version serves, and which nodes have it", Args: cobra.NoArgs},
			func(ctx context.Context, r *rollout, output *form, _ []string) error { return r.list(ctx, output) }),
		rolloutLook(&cobra.Command{Use: "history NAME", Short: "Who changed what of a model, and when", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, r *rollout, output *form, args []string) error {
				return r.history(ctx, output, args[0])
			}),
		rolloutAct(&cobra.Command{Use: "rollback NAME", Short: "Let the version serve that served before", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, r *rollout, args []string, meant meant) error {
				return r.rollback(ctx, args[0], meant)
			}),
		rolloutCommand(&cobra.Command{
			Use: "release NAME VERSION", Short: "Let a version be asked for again that was condemned, since it failed", Args: cobra.ExactArgs(2),
			Long: `Lets a version be asked for again that is condemned. An index node condemns a
version that panics, that has no score that is a finite number for any candidate
of ten questions in a row where the version before has one, or whose records
take fifty times as long as its admission reckoned. Feeds whose model it is are
then ranked by the version that served last before it and is not condemned, or
else by recency; pages that it drafts second are their first model's alone; and
requests that name the model are refused. To push the same version again
releases it too.`,
		}, func(ctx context.Context, r *rollout, args []string) error { return r.release(ctx, args[0], args[1]) }),
		dropModel(),
	}
}

func dropModel() *cobra.Command {
	var a act
	c := &cobra.Command{
		Use: "drop NAME [VERSION]", Short: "Remove a version that does not serve, or the last one of a model that no feed names", Args: cobra.RangeArgs(1, 2),
		Long: `Removes a version. What a feed or an experiment names is refused, and so is a
version that ranked within the last day: later pages of who has begun by it are
ranked by it. --override drops it all the same, and such pages begin anew.

Without VERSION it removes what is no list of versions, as when somebody wrote
it past the commands: it goes whole. A version that begins with a dash, of before
such were refused, stands behind two: millrace model drop NAME -- -1.`,
	}
	a.cm = onRollout(c, func(ctx context.Context, r *rollout, args []string) error {
		over, err := a.overrides()
		if err != nil {
			return err
		}
		if len(args) == 1 {
			done, err := dropUnreadable(ctx, r.out, r.models, "model", args[0], a.of(c))
			if !done && err == nil {
				err = &millrace.Error{Reason: millrace.ReasonInvalid, Field: "version", Detail: "which version of " + args[0] + " is to be dropped is not said", WayOut: "name one of millrace model list"}
			}
			return err
		}
		return r.drop(ctx, args[0], args[1], over, a.of(c))
	})
	a.flags(c)
	a.overrideFlag(c, "to drop what pages that viewers have begun are ranked by")
	return c
}

// dropUnreadable removes what cannot be read under a name, and reports whether that is
// so.
func dropUnreadable(ctx context.Context, w io.Writer, of *cluster.Artefacts, what, name string, meant meant) (bool, error) {
	why, err := of.Unreadable(ctx, name)
	if why == nil || err != nil {
		return false, err
	}
	fmt.Fprintf(w, "%s %s would be dropped, whole, with its history, and what brokers and nodes last read of it: it cannot be read: %v\n", what, name, why)
	if ok, err := meant(); !ok {
		return true, err
	}
	if err := of.DropUnreadable(ctx, name, whoami()); err != nil {
		return true, err
	}
	fmt.Fprintf(w, "%s %s is dropped\n", what, name)
	return true, nil
}

func pushModel(avsc *[]string) *cobra.Command {
	var p push
	c := rolloutCommand(&cobra.Command{
		Use:   "push PACK",
		Short: "Hand a pack to every index node and, once all have admitted it, let it serve",
		Long: `Publishes a pack, waits until every index node that has partitions has admitted
it, prints what each answered, and then lets it serve: from one moment to the
next, on every broker. If a node refuses it or is not heard in time, what serves
goes on, and the command fails. A version that is older than the one that
serves, or costs over fifty times as much, is published but serves only with
--serve; so is one that changes what a variant of a running experiment is ranked
by, where the experiment compares models and what serves is not condemned. One that lacks a weight which a variant of an experiment sets does not
serve while there is that experiment.`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, r *rollout, args []string) error {
		pack, err := packToPush(args[0], *avsc)
		if err != nil {
			return err
		}
		return r.push(ctx, pack, p)
	})
	c.Flags().BoolVar(&p.serve, "serve", false, "let it serve even if it is older, costs far more, or changes a variant of a running experiment")
	c.Flags().BoolVar(&p.only, "no-serve", false, "only publish it")
	c.Flags().DurationVar(&p.timeout, "timeout", 30*time.Second, "how long to wait for the index nodes")
	c.MarkFlagsMutuallyExclusive("serve", "no-serve")
	return c
}

// packToPush opens a pack and checks it here where its schemas are known. Where
// they are not, the index nodes know them, and check it.
func packToPush(name string, avsc []string) (*relevance.Pack, error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() && !exists(filepath.Join(name, relevance.ManifestFile)) {
		return nil, fmt.Errorf("%s is not sealed; run millrace model seal %s", name, name)
	}
	pack, err := relevance.OpenPack(name)
	if err == nil {
		err = relevance.CheckName(pack.Manifest.Name)
	}
	if err != nil {
		return nil, err
	}
	snapshot, err := schemasOf(avsc)
	if err != nil {
		return nil, err
	}
	if known := relevance.SchemasOf(snapshot); known.Knows(pack) {
		_, err = relevance.Validate(pack, known)
	}
	return pack, err
}

// push is how a pack is pushed.
type push struct {
	serve, only bool
	timeout     time.Duration
}

func (r *rollout) push(ctx context.Context, pack *relevance.Pack, p push) error {
	before, _ := r.models.Served(pack.Manifest.Name)
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
	changes, err := r.changes(ctx, before, v)
	if err != nil {
		return err
	}
	hold := joined(r.hold(before, v), changes)
	switch {
	case p.only:
		fmt.Fprintf(r.out, "%s is published and does not serve\n", v)
	case before == v:
		fmt.Fprintf(r.out, "%s serves already\n", v)
	case hold != "" && !p.serve:
		fmt.Fprintf(r.out, "%s is published and does not serve: %s; add --serve to let it serve all the same\n", v, hold)
	default:
		if hold != "" {
			fmt.Fprintf(r.out, "%s: %s\n", v, hold)
		}
		err := r.feeds.keeping(ctx, func(ctx context.Context) error { return r.feeds.keeps(ctx, change{model: v}) }, func(ctx context.Context) error {
			return r.models.Serve(ctx, v, &before, r.who)
		})
		if err != nil {
			return fmt.Errorf("%s is published and does not serve: %w", v, err)
		}
		fmt.Fprintf(r.out, "%s serves; ask for it by the field model, or name it in a feed\n", v)
		return tellFaults(ctx, r.out, r.feeds.cluster)
	}
	return nil
}

// publish stores a pack. The same pack is the same version, whatever wrote its
// archive.
func (r *rollout) publish(ctx context.Context, pack *relevance.Pack) (cluster.Version, error) {
	var tar bytes.Buffer
	if err := pack.WriteTar(&tar); err != nil {
		return cluster.Version{}, err
	}
	name, version := pack.Manifest.Name, pack.Manifest.Version
	before := r.models.All()[name]
	v, fresh, err := r.models.Publish(ctx, name, version, tar.Bytes(), r.who)
	if errors.Is(err, cluster.ErrOtherBytes) {
		if same, ok := r.samePack(ctx, pack); ok {
			v, err = same, nil
		}
	}
	if err != nil {
		return v, err
	}
	if fresh {
		fmt.Fprintf(r.out, "%s is published, %d bytes, checksum %.12s\n", v, tar.Len(), v.Sum)
		for _, old := range before {
			if !slices.Contains(r.models.All()[name], old) {
				fmt.Fprintf(r.out, "%s is dropped to make room%s\n", old, r.pagesOf(ctx, old))
			}
		}
	} else {
		fmt.Fprintf(r.out, "%s is published already, with the same content\n", v)
	}
	return v, nil
}

// pagesOf says what the loss of a version does to pages, if it does anything.
func (r *rollout) pagesOf(ctx context.Context, v cluster.Version) string {
	events, err := r.models.History(ctx, v.Name)
	if err != nil {
		return ""
	}
	for gone, e := range slices.Backward(events) {
		if e.What == cluster.Dropped && e.Sum == v.Sum && time.Now().Before(pagesUntil(events[:gone], v)) {
			return ": all that are kept ranked within a day; who began a feed by it and asks for more is told to begin anew"
		}
	}
	return ""
}

func (r *rollout) samePack(ctx context.Context, pack *relevance.Pack) (cluster.Version, bool) {
	v, err := r.version(pack.Manifest.Name, pack.Manifest.Version)
	if err != nil {
		return v, false
	}
	have, err := r.pack(ctx, v)
	return v, err == nil && have.Checksum == pack.Checksum
}

func (r *rollout) pack(ctx context.Context, v cluster.Version) (*relevance.Pack, error) {
	body, err := r.models.Body(ctx, v)
	if err != nil {
		return nil, err
	}
	return relevance.ReadPack(bytes.NewReader(body))
}

// version finds a version of a model.
func (r *rollout) version(name, version string) (cluster.Version, error) {
	all := r.models.All()[name]
	if len(all) == 0 {
		return cluster.Version{}, fmt.Errorf("no model %q has been pushed; see millrace model list", name)
	}
	var known []string
	for _, v := range all {
		if v.Version == version {
			return v, nil
		}
		known = append(known, v.Version)
	}
	return cluster.Version{}, fmt.Errorf("model %s has no version %q; it has %s", name, version, strings.Join(known, ", "))
}

// hold says why a version that nodes have admitted should not simply replace the
// one that serves; "" if it may.
func (r *rollout) hold(serving, next cluster.Version) string {
	if serving.Version == "" || serving == next {
		return ""
	}
	if relevance.CompareVersions(next.Version, serving.Version) < 0 {
		return fmt.Sprintf("it is older than %s, which serves", serving.Version)
	}
	now, before := r.cost(next), r.cost(serving)
	if before == 0 {
		return "" // no node has it or tells: whatever version is better
	}
	if err := relevance.MuchSlower(now, before); err != nil {
		return err.Error()
	}
	return ""
}

// cost returns what a record costs by a version, in operations, as nodes reckon
// it, which all come to the same; 0 if none has told.
func (r *rollout) cost(v cluster.Version) int {
	for _, all := range r.heard.Current() {
		for _, a := range all {
			if a.Of(v) && a.Cost > 0 {
				return a.Cost
			}
		}
	}
	return 0
}

// nodeAnswer is what one node made of a version.
type nodeAnswer struct {
	Node  millrace.NodeID `json:"node"`
	State string          `json:"state"`         // admitted, not heard or refused
	Why   string          `json:"why,omitempty"` // it is refused
	// Unkept is why one that is admitted is gone when the node restarts while etcd
	// is away.
	Unkept string `json:"unkept,omitempty"`
}

const (
	stateAdmitted = "admitted"
	stateUnheard  = "not heard"
	stateRefused  = "refused"
)

func (a nodeAnswer) String() string {
	if a.Unkept != "" {
		return a.State + ", but not kept on its disk, so that a restart while etcd is away loses it: " + a.Unkept
	}
	if a.Why != "" {
		return a.State + ": " + a.Why
	}
	return a.State
}

// answers is what the assigned nodes made of a version, in the order of their
// ids.
func (r *rollout) answers(v cluster.Version) (all []nodeAnswer) {
	heard := r.heard.Current()
	assignment := r.maps.Current().Assignment()
	nodes := assignment.Nodes()
	slices.Sort(nodes)
	for _, id := range nodes {
		a := nodeAnswer{Node: id, State: stateUnheard}
		for _, x := range heard[id] {
			switch {
			case !x.Of(v):
			case x.Refused != "":
				a.State, a.Why = stateRefused, x.Refused
			default:
				a.State, a.Why, a.Unkept = stateAdmitted, "", x.Unkept
			}
		}
		all = append(all, a)
	}
	return all
}

// await waits until every assigned node has answered, and prints the answers.
// The error says who has not admitted the version. A node that refuses may
// still change its mind, as when a schema is on its way; it has half the time.
func (r *rollout) await(ctx context.Context, v cluster.Version, timeout time.Duration) error {
	end, half := time.After(timeout), time.After(timeout/2)
	patient := true
	for {
		changed, moved, models := r.heard.Changed(), r.maps.Changed(), r.models.Changed()
		if !r.models.Has(v) {
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

// tell prints answers.
func (r *rollout) tell(v cluster.Version, all []nodeAnswer) error {
	if len(all) == 0 {
		return fmt.Errorf("%s is published and does not serve: no index node has partitions; run millrace cluster assign", v)
	}
	refused, unheard := 0, 0
	t := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	for _, a := range all {
		switch a.State {
		case stateAdmitted:
		case stateUnheard:
			unheard++
		default:
			refused++
		}
		fmt.Fprintf(t, "%s\t%s\n", a.Node, strings.ReplaceAll(a.String(), "\n", "\n\t"))
	}
	if err := t.Flush(); err != nil || refused+unheard == 0 {
		return err
	}
	lack := fmt.Sprintf("of %d index nodes %d refused it and %d were not heard; the nodes go on trying", len(all), refused, unheard)
	if now, _ := r.models.Served(v.Name); now == v {
		return fmt.Errorf("%s serves already: %s%s", v, lack, r.awayOf(all))
	}
	return fmt.Errorf("%s is published and does not serve: %s, and nothing lets it serve by itself: once millrace model list says %d of %d, run the same millrace model push again, which then serves it at once%s", v, lack, len(all), len(all), r.awayOf(all))
}

// awayOf says what to do about nodes that have not answered since they are not
// there; "" if all are.
func (r *rollout) awayOf(all []nodeAnswer) string {
	var away []millrace.NodeID
	for _, a := range all {
		if a.State == stateUnheard && !r.maps.Current().Alive(a.Node) {
			away = append(away, a.Node)
		}
	}
	if len(away) == 0 {
		return ""
	}
	return fmt.Sprintf("\naway: %q. A push waits for every node that has partitions: start it, move its partitions with millrace node drain, or give it up with millrace node remove if it is gone for good", away)
}

// listedModel is a version of a model as list shows it.
type listedModel struct {
	Name      string        `json:"name"`
	Version   string        `json:"version"`
	BuiltIn   bool          `json:"built_in"` // into every node
	Serves    bool          `json:"serves"`
	Covered   bool          `json:"covered,omitempty"` // by a built-in model, so that nobody asks for it
	Nodes     []nodeAnswer  `json:"nodes"`             // of a version that was pushed
	Checksum  string        `json:"checksum,omitempty"`
	Condemned *condemnation `json:"condemned,omitempty"`
}

// list shows what every node really has.
func (r *rollout) list(ctx context.Context, output *form) error {
	shown := []listedModel{}
	builtin := relevance.Builtin()
	for _, name := range builtin.Names() {
		m, err := builtin.Get(name)
		if err != nil {
			return err
		}
		shown = append(shown, listedModel{Name: name, Version: m.Version(), BuiltIn: true, Serves: true, Nodes: []nodeAnswer{}})
	}
	all, serving := r.models.All(), r.models.Serving()
	condemned := r.failed.Current()
	for _, name := range r.models.Names() {
		for _, v := range all[name] {
			m := listedModel{Name: name, Version: v.Version, Serves: serving[name] == v && relevance.CheckName(name) == nil, Covered: relevance.CheckName(name) != nil, Nodes: list(r.answers(v)), Checksum: v.Sum}
			if x, is := condemned[v]; is {
				m.Condemned = r.condemnation(ctx, v, x)
			}
			shown = append(shown, m)
		}
	}
	return output.write(r.out, shown, func(w io.Writer) error { return writeModels(w, shown) })
}

func writeModels(w io.Writer, all []listedModel) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tVERSION\tSTATE\tNODES\tCHECKSUM")
	var refusals []string
	for _, m := range all {
		if m.BuiltIn {
			fmt.Fprintf(t, "%s\t%s\tbuilt in\tall\t-\n", m.Name, m.Version)
			continue
		}
		state := "published"
		if m.Serves {
			state = "serves"
		}
		if m.Covered {
			state = "never asked for"
			refusals = append(refusals, fmt.Sprintf("%s %s: somebody wrote it past the commands under the name of a built-in model, which answers; millrace model drop %[1]s %[2]s --apply removes it", m.Name, m.Version))
		}
		if m.Condemned != nil {
			state += ", condemned"
			refusals = append(refusals, m.Condemned.String())
		}
		admitted := 0
		for _, a := range m.Nodes {
			if a.State == stateAdmitted {
				admitted++
			}
			if (a.State != stateAdmitted || a.Unkept != "") && !m.Covered {
				refusals = append(refusals, fmt.Sprintf("%s %s: %s %s", m.Name, m.Version, a.Node, a))
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d of %d\t%.12s\n", m.Name, m.Version, state, admitted, len(m.Nodes), m.Checksum)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range refusals {
		fmt.Fprintln(w, line)
	}
	return nil
}

// condemnation says why a version is condemned, and what ranks in its place.
type condemnation struct {
	of        cluster.Version
	When      time.Time `json:"when"`
	Who       string    `json:"who"` // the node that met it
	Why       string    `json:"why"`
	InPlace   string    `json:"ranks_in_its_place,omitempty"` // of the version that serves
	Undrafted []string  `json:"undrafted,omitempty"`          // experiments whose pages are the first model's alone
	Unknown   string    `json:"undrafted_unknown,omitempty"`  // why that is not known
}

func (r *rollout) condemnation(ctx context.Context, v cluster.Version, x cluster.Condemnation) *condemnation {
	c := &condemnation{of: v, When: x.When.UTC(), Who: x.Who, Why: x.Why}
	if serves, _ := r.models.Served(v.Name); serves != v {
		return c
	}
	c.InPlace = "recency"
	if before, ok := r.inPlaceOf(v); ok {
		c.InPlace = before.String()
	}
	var err error
	c.Undrafted, err = experimentsUsing(ctx, r.feeds.cluster, func(s *experiment.Set) []string { return s.DraftsSecond(v.Name) })
	c.Unknown = faultText(err)
	return c
}

func (c *condemnation) String() string {
	line := fmt.Sprintf("%s: condemned %s: %s", c.of, c.When.Format("2006-01-02 15:04:05Z"), c.Why)
	if c.InPlace != "" {
		line += fmt.Sprintf("; %s ranks in its place", c.InPlace)
	}
	switch {
	case c.Unknown != "":
		line += "; whether it drafts pages is not known: " + c.Unknown
	case len(c.Undrafted) > 0:
		line += fmt.Sprintf("; nothing drafts in its place in %s, whose pages are the first model's alone", strings.Join(c.Undrafted, ", "))
	}
	return line
}

// inPlaceOf returns the version that ranks in the place of a condemned one; false
// if that is recency.
func (r *rollout) inPlaceOf(v cluster.Version) (cluster.Version, bool) {
	for _, before := range r.models.Before(v.Name) {
		if r.failed.Why(before) == "" {
			return before, true
		}
	}
	return cluster.Version{}, false
}

// absolve lets a version be asked for again, if it is condemned.
func (r *rollout) absolve(ctx context.Context, v cluster.Version) error {
	why := r.failed.Why(v)
	if why == "" {
		return nil
	}
	if err := r.failed.Release(ctx, r.models, v, r.who); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%s is asked for again; it was condemned: %s\n", v, why)
	return nil
}

func (r *rollout) release(ctx context.Context, name, version string) error {
	v, err := r.version(name, version)
	if err != nil {
		return err
	}
	if r.failed.Why(v) == "" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "version", Detail: fmt.Sprintf("%s is not condemned", v), WayOut: "see millrace model list"}
	}
	return r.absolve(ctx, v)
}

func (r *rollout) history(ctx context.Context, output *form, name string) error {
	events, err := r.models.History(ctx, name)
	if err != nil {
		return err
	}
	return output.write(r.out, eventsShown(events), func(w io.Writer) error {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "WHEN\tWHAT\tVERSION\tCHECKSUM\tWHO")
		for _, e := range events {
			fmt.Fprintf(t, "%s\t%s\t%s\t%.12s\t%s\n", e.When.Format("2006-01-02 15:04:05Z"), e.What, e.Version, e.Sum, e.Who)
		}
		return t.Flush()
	})
}

// eventShown is a change of a document or of a model, as JSON.
type eventShown struct {
	When     time.Time      `json:"when"`
	What     cluster.Change `json:"what"`
	Version  string         `json:"version,omitempty"`
	Checksum string         `json:"checksum,omitempty"`
	Who      string         `json:"who"`
}

func eventsShown(events []cluster.Event) []eventShown {
	all := []eventShown{}
	for _, e := range events {
		all = append(all, eventShown{e.When.UTC(), e.What, strings.TrimPrefix(e.Version, "-"), e.Sum, e.Who})
	}
	return all
}

func (r *rollout) rollback(ctx context.Context, name string, meant meant) error {
	before, _ := r.models.Served(name)
	v, err := r.models.RollsBackTo(ctx, name)
	if errors.Is(err, cluster.ErrNoVersion) && before.Version != "" {
		return fmt.Errorf("no version of model %s that is still there served before %s: to let another of millrace model list serve, run millrace model pull %s VERSION --out FILE, and millrace model push --serve FILE: %w", name, before.Version, name, err)
	}
	switch {
	case errors.Is(err, cluster.ErrNothingBefore) && len(r.models.All()[name]) == 0:
		return fmt.Errorf("no model %q has been pushed, so that there is nothing to go back to; see millrace model list", name)
	case errors.Is(err, cluster.ErrNothingBefore):
		return fmt.Errorf("no version of model %s serves, and none that is still there served before: millrace model push --serve PACK lets one serve; see millrace model list", name)
	case err != nil:
		return err
	}
	fmt.Fprintf(r.out, "%s would serve again, in place of %s\n", v, before.Version)
	if err := r.showUses(ctx, name); err != nil {
		return err
	}
	changes, err := r.changes(ctx, before, v)
	if err != nil {
		return err
	}
	if changes != "" {
		fmt.Fprintf(r.out, "note: %s\n", changes)
	}
	r.tellUnfit(ctx, v)
	if err := r.feeds.keeps(ctx, change{model: v}); err != nil {
		return err
	}
	if ok, err := meant(); !ok {
		return err
	}
	err = r.feeds.keeping(ctx, func(ctx context.Context) error { return r.feeds.keeps(ctx, change{model: v}) }, func(ctx context.Context) error {
		return goBack(ctx, r.models, v)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%s serves again, in place of %s\n", v, before.Version)
	return nil
}

// tellUnfit tells what speaks against a version, and refuses nothing by it: it is
// condemned, or nodes do not have it.
func (r *rollout) tellUnfit(ctx context.Context, v cluster.Version) {
	if x, is := r.failed.Current()[v]; is {
		fmt.Fprintln(r.out, r.condemnation(ctx, v, x))
	}
	for _, a := range r.answers(v) {
		if a.State != stateAdmitted {
			fmt.Fprintf(r.out, "%s: %s; others are asked\n", a.Node, a)
		}
	}
}

// uses returns the feeds and the experiments that name a model.
func (r *rollout) uses(ctx context.Context, name string) ([]string, error) {
	named, err := r.feedsThatName(ctx, name)
	if err != nil {
		return nil, err
	}
	using, err := experimentsUsing(ctx, r.feeds.cluster, func(s *experiment.Set) []string { return s.UsesModel(name) })
	return append(named, using...), err
}

func (r *rollout) showUses(ctx context.Context, name string) error {
	named, err := r.uses(ctx, name)
	if len(named) > 0 {
		fmt.Fprintf(r.out, "in use by %s\n", strings.Join(named, ", "))
	}
	return err
}

func (r *rollout) drop(ctx context.Context, name, version string, over bool, meant meant) error {
	v, err := r.version(name, version)
	if err != nil {
		return err
	}
	var named []string // those of a built-in's name use that one
	if relevance.CheckName(name) == nil {
		if named, err = r.uses(ctx, name); err != nil {
			return err
		}
	}
	uses := func(_ cluster.Version, serves bool) []string {
		if serves {
			return named
		}
		return nil // feeds name models and not versions
	}
	if err := r.ranksNowhere(v); err != nil {
		return err
	}
	bytes, err := r.models.MayDrop(ctx, v, uses)
	if err != nil {
		return err
	}
	if err := r.ranksNoPages(ctx, v); err != nil && !over && relevance.CheckName(name) == nil {
		return err
	}
	fmt.Fprintf(r.out, "%s would be dropped, %d bytes; nobody could go back to it\n", v, bytes)
	if ok, err := meant(); !ok {
		return err
	}
	if err := r.ranksNowhere(v); err != nil { // what serves may have failed meanwhile
		return err
	}
	if err := r.models.Drop(ctx, v, uses, r.who); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%s is dropped\n", v)
	return r.failed.Forget(ctx, v)
}

// ranksNowhere refuses a version that ranks in the place of one that is condemned.
func (r *rollout) ranksNowhere(v cluster.Version) error {
	serves, _ := r.models.Served(v.Name)
	if in, ok := r.inPlaceOf(v); !ok || in != v || r.failed.Why(serves) == "" {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "version", Detail: fmt.Sprintf("%s ranks in the place of %s, which serves and is condemned", v, serves),
		WayOut: fmt.Sprintf("push a version that is mended, or let %s be asked for again with millrace model release, first", serves),
	}
}

// ranksNoPages refuses a version that a page token may name: those of who asked for
// a first page while it ranked.
func (r *rollout) ranksNoPages(ctx context.Context, v cluster.Version) error {
	events, err := r.models.History(ctx, v.Name)
	if err != nil {
		return err
	}
	if until := pagesUntil(events, v); time.Now().Before(until) {
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "version", Detail: fmt.Sprintf("%s is in use by pages: who began while it ranked may ask for more until %s", v, until.UTC().Format("2006-01-02 15:04:05Z")),
			WayOut: "wait until then, or say --override with the cluster's name: such pages are refused then, and begin anew",
		}
	}
	return nil
}

// pagesUntil returns until when a page token may name a version.
func pagesUntil(events []cluster.Event, v cluster.Version) time.Time {
	return lastRanked(events, v, time.Now()).Add(broker.TokenLife)
}

// lastRanked returns when a version ranked last by a model's history: it served, or
// had served before another that was condemned. The zero time: never.
func lastRanked(events []cluster.Event, v cluster.Version, now time.Time) (last time.Time) {
	ranks, served, serves := false, false, "" // the sum of what serves
	for _, e := range events {                // oldest first
		was := ranks
		switch {
		case e.What == cluster.Served || e.What == cluster.RolledBack:
			serves, ranks = e.Sum, e.Sum == v.Sum
			served = served || ranks
		case e.What == cluster.Dropped && e.Sum == v.Sum:
			ranks, served = false, false
		case e.What == cluster.Failed && e.Sum == serves:
			ranks = served && e.Sum != v.Sum
		case e.What == cluster.Released && e.Sum == serves:
			ranks = e.Sum == v.Sum
		}
		if was && !ranks {
			last = e.When
		}
	}
	if ranks {
		last = now
	}
	return last
}

// feedsThatName returns the feeds of the cluster whose model or shadow has a
// name.
func (r *rollout) feedsThatName(ctx context.Context, model string) (names []string, err error) {
	all, err := r.feeds.definitions(ctx)
	for name, f := range all {
		switch {
		case f.fault != nil:
			names = append(names, "feed "+name+", perhaps: its definition has a fault")
		case f.Model == model || slices.Contains(f.Shadow, model):
			names = append(names, "feed "+name)
		}
	}
	slices.Sort(names)
	return names, err
}

func (r *rollout) pull(ctx context.Context, args []string, out string) error {
	v, serves := r.models.Served(args[0])
	if len(args) > 1 {
		var err error
		if v, err = r.version(args[0], args[1]); err != nil {
			return err
		}
	} else if !serves {
		return fmt.Errorf("no version of model %q serves; see millrace model list", args[0])
	}
	body, err := r.models.Body(ctx, v)
	if err != nil {
		return err
	}
	if out == "" {
		out = v.Name + "-" + v.Version + ".tar.zst"
		if strings.ContainsAny(out, `/\`) {
			return fmt.Errorf("%q is not the name of a file; name one with --out", out)
		}
	}
	if err := os.WriteFile(out, body, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%s is in %s, %d bytes\n", v, out, len(body))
	return nil
}
