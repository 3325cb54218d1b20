package plan

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// Rule is a hard rule by which a node may not host a partition, a stable word.
type Rule string

// The hard rules, about in the order in which they are checked.
const (
	RuleUnknownPartition Rule = "unknown_partition" // there is no such partition
	RuleUnknownNode      Rule = "unknown_node"      // there is no such node
	RuleGone             Rule = "gone"              // the node is away for longer than the grace
	RuleBackupOnly       Rule = "backup_only"       // the node serves nobody
	RuleDraining         Rule = "draining"          // the node is to host nothing
	RuleAlready          Rule = "already"           // the node hosts the partition
	RuleAway             Rule = "away"              // the node is not there, and may be back
	RuleNotThere         Rule = "not_there"         // the node whose replica is to be replaced does not host the partition
	RuleEnough           Rule = "enough"            // the partition has all replicas that are wanted
	RuleZoneTaken        Rule = "zone_taken"        // the node's zone has its share of the partition's replicas
	RuleNoRoom           Rule = "no_room"           // the node's disk has no room for it
)

// Verdict says whether a node may host a partition.
type Verdict struct {
	Partition millrace.Partition
	Node      millrace.NodeID
	From      millrace.NodeID // the node whose replica is replaced; "": the new one is beside those that are there
	OK        bool
	Rule      Rule   // the rule that refuses; "" if OK
	Detail    string // the figures by which the rule refuses, or what else there is to know if OK
}

// String returns the detail. If a rule refuses, its word comes first.
func (v Verdict) String() string {
	if v.OK {
		return v.Detail
	}
	return string(v.Rule) + ": " + v.Detail
}

// Explain says whether a node may host a partition, given where its replicas are now, and
// which rule refuses. [Make] goes by the same rules, also for a [Problem.Force]. If the
// partition lacks a replica, or has one on a node that may host nothing, the node would get
// that replica. Otherwise it would take the place of one of the replicas.
func (p Problem) Explain(part millrace.Partition, node millrace.NodeID) (Verdict, error) {
	return p.ExplainMove(Placement{Partition: part, To: node})
}

// ExplainMove is Explain of a placement that may name the node whose replica it replaces.
func (p Problem) ExplainMove(f Placement) (Verdict, error) {
	if err := p.validate(); err != nil {
		return Verdict{}, err
	}
	return newLayout(&p).explain(f), nil
}

// layout is a problem that the planner works on, and where the replicas are so far. Here
// and in its methods a node is an index into the field nodes, and a zone one into zones.
type layout struct {
	problem *Problem
	nodes   []Node
	known   int // how many nodes the problem names; behind them are those that only the assignment names
	index   map[millrace.NodeID]int
	usable  int   // how many nodes may host anything
	wanted  int   // replicas of each partition on usable nodes: those wanted, or fewer if there are fewer nodes
	zone    []int // [node]
	zones   []zone
	spare   int // replicas of each partition beyond the least of all zones together

	home [][]bool // [node][partition]: the node hosts it today
	// at has the usable nodes with a replica of each partition; held is the same as
	// [node][partition].
	at    [partition.Count][]int
	held  [][]bool
	count []int     // [node]: its replicas
	pair  [][]int16 // [node][node]: partitions that both have
	room  []int64   // [node]: bytes that still fit; below 0: too much is there
	most  []int     // [node]: replicas that it may have as far as its disk goes

	size   [partition.Count][2]float64 // bytes and load of a replica
	fill   [][2]float64                // [node]: bytes and load of its replicas
	total  [2]float64                  // bytes and load of all wanted replicas
	weight float64                     // of all usable nodes
}

// zone is a zone, and how many replicas of one partition it may have.
type zone struct {
	name        string
	nodes       int // how many usable nodes it has
	least, most int // replicas of a partition, see quotas
}

func newLayout(p *Problem) *layout {
	l := &layout{problem: p, index: map[millrace.NodeID]int{}}
	l.nodes, l.known = p.sorted()
	n := len(l.nodes)
	l.zone, l.count, l.room, l.most, l.fill = make([]int, n), make([]int, n), make([]int64, n), make([]int, n), make([][2]float64, n)
	l.home, l.held, l.pair = grid[bool](n, partition.Count), grid[bool](n, partition.Count), grid[int16](n, n)
	for i := range l.nodes {
		x := &l.nodes[i]
		l.index[x.ID] = i
		if x.Weight == 0 {
			x.Weight = 1
		}
		l.most[i], l.room[i] = partition.Count, 1<<62 // no limit
		if x.Disk > 0 {
			l.room[i] = x.Room()
		}
		l.zone[i] = l.zoneOf(x.Zone)
		if l.standing(i) == "" {
			l.usable++
			l.weight += x.Weight
			l.zones[l.zone[i]].nodes++
		}
	}
	l.wanted = min(p.Wanted, l.usable)
	l.quotas()
	for part := range p.Now {
		l.size[part] = [2]float64{float64(p.Partitions[part].Bytes), p.Partitions[part].Load}
		for k := range l.total {
			l.total[k] += l.size[part][k] * float64(l.wanted)
		}
		for _, id := range p.Now[part] {
			i := l.index[id]
			l.home[i][part] = true
			if l.standing(i) == "" {
				l.put(part, i)
			}
		}
	}
	return l
}

// keptFree is the part of a disk that stays free at least: a tenth.
const keptFree = 10

// grid returns a matrix of zeros.
func grid[T any](rows, columns int) [][]T {
	all := make([]T, rows*columns)
	g := make([][]T, rows)
	for i := range g {
		g[i] = all[i*columns : (i+1)*columns : (i+1)*columns]
	}
	return g
}

// zoneOf returns the index of a zone, which it adds if it is new.
func (l *layout) zoneOf(name string) int {
	for i, z := range l.zones {
		if z.name == name {
			return i
		}
	}
	l.zones = append(l.zones, zone{name: name})
	return len(l.zones) - 1
}

// quotas sets how many replicas of a partition each zone may have: as even as the zones'
// nodes allow, so 0 or 1 if there are at least as many zones as replicas. Every zone has
// at least its least, and spare of the zones have one more, up to their most.
func (l *layout) quotas() {
	level, fit := 0, 0
	for fit < l.wanted {
		level++
		fit = 0
		for _, z := range l.zones {
			fit += min(z.nodes, level)
		}
	}
	l.spare = l.wanted
	for i := range l.zones {
		z := &l.zones[i]
		z.most, z.least = min(z.nodes, level), min(z.nodes, max(level-1, 0))
		l.spare -= z.least
	}
}

// standing returns the rule by which a node may host nothing at all; "" if it is usable.
func (l *layout) standing(i int) Rule {
	switch n := &l.nodes[i]; {
	case i >= l.known:
		return RuleUnknownNode
	case n.Gone:
		return RuleGone
	case n.BackupOnly:
		return RuleBackupOnly
	case n.Draining:
		return RuleDraining
	}
	return ""
}

// none stands for no node.
const none = -1

// judge is the one function that says whether a node may have a replica of a partition, in
// place of the one on from, or beside those that are there if from is none. It returns the
// rule that refuses, or "".
func (l *layout) judge(part, from, to int) Rule {
	if r := l.standing(to); r != "" {
		return r
	}
	switch {
	case l.held[to][part]:
		return RuleAlready
	case !l.takes(part, to):
		return RuleAway
	case l.others(part, from) >= l.wanted:
		return RuleEnough
	case !l.zoneFits(part, from, l.zone[to]):
		return RuleZoneTaken
	case !l.roomFits(part, to):
		return RuleNoRoom
	}
	return ""
}

// takes reports whether a node is not away, or hosts the partition today.
func (l *layout) takes(part, n int) bool { return !l.nodes[n].Away || l.home[n][part] }

// others returns how many replicas of a partition on usable nodes are not on from.
func (l *layout) others(part, from int) int {
	if slices.Contains(l.at[part], from) {
		return len(l.at[part]) - 1
	}
	return len(l.at[part])
}

// zoneFits reports whether a zone may have one more replica of a partition, once
// the one on from has left.
func (l *layout) zoneFits(part, from, z int) bool {
	inside, above := 0, 0 // replicas in the zone; replicas in all zones beyond the least of each
	at := l.at[part]
	for i, n := range at {
		if n == from {
			continue
		}
		nth := 1
		for _, before := range at[:i] {
			if before != from && l.zone[before] == l.zone[n] {
				nth++
			}
		}
		if l.zone[n] == z {
			inside++
		}
		if nth > l.zones[l.zone[n]].least {
			above++
		}
	}
	q := l.zones[z]
	return inside < q.least || inside < q.most && above < l.spare
}

// roomFits reports whether a node has room for a partition. A partition that leaves the
// node makes no room: it stays on disk so that the move can be taken back. A node that
// hosts the partition today has the bytes already.
func (l *layout) roomFits(part, to int) bool {
	return l.home[to][part] || l.problem.Partitions[part].Bytes <= l.room[to] && l.room[to] >= 0
}

// put adds a replica to a node, and take removes one from it.
func (l *layout) put(part, n int) {
	for _, other := range l.at[part] {
		l.pair[n][other]++
		l.pair[other][n]++
	}
	l.at[part] = append(l.at[part], n)
	l.held[n][part] = true
	l.weigh(part, n, 1)
}

func (l *layout) take(part, n int) {
	i := slices.Index(l.at[part], n)
	l.at[part] = slices.Delete(l.at[part], i, i+1)
	for _, other := range l.at[part] {
		l.pair[n][other]--
		l.pair[other][n]--
	}
	l.held[n][part] = false
	l.weigh(part, n, -1)
}

// weigh counts a replica that has come to a node (sign 1) or left it (-1).
func (l *layout) weigh(part, n, sign int) {
	l.count[n] += sign
	for k := range l.fill[n] {
		l.fill[n][k] += float64(sign) * l.size[part][k]
	}
	if !l.home[n][part] {
		l.room[n] -= int64(sign) * l.problem.Partitions[part].Bytes
	}
}

// explain is [Problem.ExplainMove].
func (l *layout) explain(f Placement) Verdict {
	v := Verdict{Partition: f.Partition, Node: f.To}
	to, known := l.index[f.To]
	part := int(f.Partition)
	switch {
	case part >= partition.Count:
		return v.refused(RuleUnknownPartition, fmt.Sprintf("there are partitions 0 to %d", partition.Count-1))
	case !known || to >= l.known:
		return v.refused(RuleUnknownNode, fmt.Sprintf("no node of %d is called %q", l.known, f.To))
	case l.home[to][part] && l.standing(to) == "":
		return v.refused(RuleAlready, fmt.Sprintf("%s hosts it", f.To))
	}
	from, err := l.leaving(part, f.From)
	if err != "" {
		return v.refused(RuleNotThere, err)
	}
	var first Verdict
	for i, n := range from {
		v.From = ""
		if n != none {
			v.From = l.nodes[n].ID
		}
		rule := l.judge(part, n, to)
		if rule == "" {
			v.OK, v.Detail = true, l.welcome(to, v.From)
			return v
		}
		if refused := v.refused(rule, l.figures(rule, part, n, to)); i == 0 {
			first = refused
		}
	}
	return first
}

func (v Verdict) refused(r Rule, detail string) Verdict {
	v.OK, v.Rule, v.Detail = false, r, detail
	return v
}

// leaving returns the nodes whose replica a new one of the partition may replace. That is
// the node named, if it is not "". Otherwise it is every usable one if none is missing, or
// one that may host nothing; or [none], if a replica is only missing. err says why named
// is refused.
func (l *layout) leaving(part int, named millrace.NodeID) (from []int, err string) {
	owners := l.problem.Now[part]
	if named != "" {
		if !slices.Contains(owners, named) {
			return nil, fmt.Sprintf("%q does not host it; %q do", named, owners)
		}
		return []int{l.index[named]}, ""
	}
	if len(l.at[part]) >= l.wanted {
		return slices.Clone(l.at[part]), ""
	}
	for _, id := range owners {
		if l.standing(l.index[id]) != "" {
			return []int{l.index[id]}, ""
		}
	}
	return []int{none}, ""
}

// figures says in words why a rule refuses.
func (l *layout) figures(r Rule, part, from, to int) string {
	n := l.nodes[to]
	switch r {
	case RuleGone:
		return fmt.Sprintf("%s is away for longer than the grace", n.ID)
	case RuleBackupOnly:
		return fmt.Sprintf("%s reads and backs up, and serves nobody", n.ID)
	case RuleDraining:
		return fmt.Sprintf("%s is to host nothing", n.ID)
	case RuleAlready:
		return fmt.Sprintf("%s hosts it", n.ID)
	case RuleAway:
		return fmt.Sprintf("%s is not there, and gets nothing until it is back", n.ID)
	case RuleEnough:
		return fmt.Sprintf("it has %d of %d wanted", len(l.at[part]), l.wanted)
	case RuleZoneTaken:
		return l.zoneFigures(part, from, to)
	}
	return fmt.Sprintf("%s wanted; %s has %s free, of which %s stay free", size(l.problem.Partitions[part].Bytes), n.ID, size(n.Free), size(n.kept()))
}

func (l *layout) zoneFigures(part, from, to int) string {
	var have []millrace.NodeID
	for _, n := range l.at[part] {
		if n != from && l.zone[n] == l.zone[to] {
			have = append(have, l.nodes[n].ID)
		}
	}
	z := l.zones[l.zone[to]]
	if len(have) == 1 {
		return fmt.Sprintf("%s in zone %q has it; %d replicas go to %d zones", have[0], z.name, l.wanted, l.usableZones())
	}
	return fmt.Sprintf("%d in zone %q have it; %d replicas go to %d zones", len(have), z.name, l.wanted, l.usableZones())
}

// usableZones returns how many zones have a usable node.
func (l *layout) usableZones() (n int) {
	for _, z := range l.zones {
		n += min(z.nodes, 1)
	}
	return n
}

// hostingZones returns in how many zones anything is hosted today.
func (l *layout) hostingZones() (n int) {
	hosting := make([]bool, len(l.zones))
	for i := range l.nodes {
		if z := l.zone[i]; !hosting[z] && slices.Contains(l.home[i], true) {
			hosting[z], n = true, n+1
		}
	}
	return n
}

// welcome is the detail of a verdict where no rule refuses.
func (l *layout) welcome(to int, from millrace.NodeID) string {
	s := fmt.Sprintf("no rule refuses it: %s hosts %d, and its share is %.1f", l.nodes[to].ID, l.count[to], l.share(to))
	if w := l.nodes[to].Weight; w != 1 {
		s += fmt.Sprintf(" by its weight of %v", w)
	}
	if from != "" {
		s += fmt.Sprintf("; it takes the place of %s", from)
	}
	return s
}

// size writes bytes as people read them.
func size(bytes int64) string {
	const units = "KMGTPE"
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	x, u := float64(bytes)/1024, 0
	for x >= 1024 && u < len(units)-1 {
		x, u = x/1024, u+1
	}
	return fmt.Sprintf("%.1f %ciB", x, units[u])
}
