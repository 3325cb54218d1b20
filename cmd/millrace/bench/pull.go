package bench

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// What a team would use today, at its best: Redis with a sorted set a
// timeline, by time; its members records of a few bytes; and a client that
// reads a viewer's timelines in one round trip, filters and scores them by
// hand-written code, and keeps the best.

// memberBytes is a record as the sorted sets have it.
const memberBytes = 8 + 4 + 1 + 1 + 4 + 4*4 + 3

// member is the record in as many bytes.
func (x *record) member() []byte {
	b := make([]byte, 0, memberBytes)
	b = binary.LittleEndian.AppendUint64(b, uint64(x.at))
	b = binary.LittleEndian.AppendUint32(b, uint32(x.entity))
	b = append(b, byte(x.number), byte(x.kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(int32(x.article)))
	for _, n := range []int{x.likes, x.comments, x.shares, x.impressions} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return append(b, byte(x.language), byte(x.country), byte(x.visibility))
}

// readMember is its inverse, but for what the baseline does not need.
func (x *record) readMember(b []byte) {
	_ = b[memberBytes-1]
	x.at = int64(binary.LittleEndian.Uint64(b))
	x.entity, x.number, x.kind = int(binary.LittleEndian.Uint32(b[8:])), int(b[12]), int(b[13])
	x.article = int(int32(binary.LittleEndian.Uint32(b[14:])))
	x.likes, x.comments = int(binary.LittleEndian.Uint32(b[18:])), int(binary.LittleEndian.Uint32(b[22:]))
	x.shares, x.impressions = int(binary.LittleEndian.Uint32(b[26:])), int(binary.LittleEndian.Uint32(b[30:]))
	x.language, x.country, x.visibility = int(b[34]), int(b[35]), int(b[36])
}

func timelineKey(dst []byte, entity, kind int) []byte {
	dst = append(dst, "t:"...)
	dst = strconv.AppendInt(dst, int64(entity), 10)
	dst = append(dst, ':')
	return strconv.AppendInt(dst, int64(kind), 10)
}

// fillRedis brings the world into sorted sets.
func (w *world) fillRedis(c *redisConn) error {
	const batch = 500 // entities
	sent := 0
	for e := range w.entities {
		sets := make([][][]byte, len(w.feed.Types))
		for _, x := range w.records(e) {
			sets[x.kind] = append(sets[x.kind], strconv.AppendInt(nil, x.at, 10), x.member())
		}
		for kind, set := range sets {
			if len(set) > 0 {
				c.command(append([][]byte{[]byte("ZADD"), timelineKey(nil, e, kind)}, set...)...)
				sent++
			}
		}
		if (e+1)%batch != 0 && e+1 < w.entities {
			continue
		}
		if err := c.send(); err != nil {
			return err
		}
		for ; sent > 0; sent-- {
			if _, err := c.number(':'); err != nil {
				return err
			}
		}
	}
	return nil
}

// puller is a client of the baseline. It is used by one goroutine.
type puller struct {
	w    *world
	conn *redisConn
	kept []scored
	key  []byte
	seen map[int]bool // articles
}

type scored struct {
	record
	score float64
}

// pull answers a question: the ids of the best.
func (p *puller) pull(q *question) (string, error) {
	from := strconv.AppendInt(nil, int64(asOf)-p.w.feed.Window.Milliseconds(), 10)
	for _, e := range q.follows {
		for kind := range p.w.feed.Types {
			p.key = timelineKey(p.key[:0], e, kind)
			p.conn.command([]byte("ZRANGEBYSCORE"), p.key, from, []byte("+inf"))
		}
	}
	if err := p.conn.send(); err != nil {
		return "", err
	}
	reads := 0 // languages, as bits
	for _, l := range q.viewer.reads {
		reads |= 1 << l
	}
	p.kept = p.kept[:0]
	var x record
	for range len(q.follows) * len(p.w.feed.Types) {
		members, err := p.conn.number('*')
		if err != nil {
			return "", err
		}
		for range members {
			b, err := p.conn.text()
			if err != nil {
				return "", err
			}
			if len(b) != memberBytes {
				return "", fmt.Errorf("redis: a member of %d bytes", len(b))
			}
			x.readMember(b)
			if x.likes >= 3 && x.impressions < 20000 && reads>>x.language&1 != 0 {
				p.kept = append(p.kept, scored{x, thirty(&x, &q.viewer)})
			}
		}
	}
	return p.best(), nil
}

// best is the ids of the best of distinct objects.
func (p *puller) best() string {
	slices.SortFunc(p.kept, func(a, b scored) int {
		if c := cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.at, a.at)); c != 0 {
			return c
		}
		return strings.Compare(a.id(), b.id())
	})
	clear(p.seen)
	var ids []string
	for i := range p.kept {
		x := &p.kept[i]
		if x.article >= 0 {
			if p.seen[x.article] {
				continue
			}
			p.seen[x.article] = true
		}
		if ids = append(ids, x.id()); len(ids) == p.w.feed.Limit {
			break
		}
	}
	return strings.Join(ids, " ")
}

// What the model thirty adds for each language, country and type.
var (
	languageWeights = []float64{0.2, 0.15, 0.12, 0.1, 0.08, 0.07, 0.05}
	countryWeights  = []float64{0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0, 0, 0, 0, 0, 0, 0, 0}
	typeWeights     = []float64{0.4, 0.2, 0.1}
)

// thirty is the model of that name, as somebody would write it by hand.
func thirty(x *record, v *viewer) float64 {
	likes, comments, shares, impressions := float64(x.likes), float64(x.comments), float64(x.shares), float64(x.impressions)
	age := max(float64(int64(asOf)-x.at)/1000, 0)
	seen := max(impressions, 1)
	logLikes, logComments := math.Log1p(likes), math.Log1p(comments)
	freshDay := math.Exp2(-age / 86400)
	s := 0.002*likes + 0.004*comments + 0.006*shares + 0.00001*impressions +
		0.31*logLikes + 0.42*logComments + 0.37*math.Log1p(shares) - 0.12*math.Log1p(impressions) + 0.11*math.Log1p(likes+comments+shares) +
		0.05*bucket(likes, 1, 3, 10, 30, 100) + 0.06*bucket(comments, 1, 3, 10, 30) - 0.03*bucket(impressions, 10, 100, 1000, 10000) - 0.15*bucket(age, 3600, 21600, 86400, 604800) +
		0.8*likes/seen + 1.1*comments/seen + 1.3*shares/seen + 0.07*comments/max(likes, 1) + 0.05*shares/max(likes+comments, 1) +
		1.7*min(max((likes+3*comments+5*shares)/max(impressions, 100), 0), 1) + 0.0001*likes*comments + 0.03*logLikes*logComments +
		1.4*freshDay + 2.6*math.Exp2(-age/(v.freshnessHours*3600)) + 0.21*freshDay*logLikes +
		languageWeights[x.language] + countryWeights[x.country] + typeWeights[x.kind] + 0.2*v.chatty*logComments
	if x.visibility == 0 {
		s += 0.2
	}
	if x.country == v.country {
		s += 0.4
	}
	return s
}

// bucket is how many bounds x reaches.
func bucket(x float64, bounds ...float64) float64 {
	for i, b := range bounds {
		if x < b {
			return float64(i)
		}
	}
	return float64(len(bounds))
}
