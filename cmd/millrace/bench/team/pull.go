package team

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// This is the baseline with Redis. A timeline is a sorted set, by time, whose members are
// records without the field text. The client reads all timelines of a question in one round
// trip. It filters and scores their records as the hand-written index does, and keeps the
// best.

// memberHead is the number of bytes of a member before the vector: the time, four counters,
// and a byte each for language, country and visibility. After the vector come a byte with
// the length of the id, the id, and the object unless it is the id.
const memberHead = 8 + 4*4 + 3

// member returns the record as a member of a sorted set, in the layout that [memberHead]
// describes.
func (x *record) member() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(x.at))
	for _, n := range []int64{x.likes, x.comments, x.shares, x.imp} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	public := byte(0)
	if x.visibility == visibilities[0] {
		public = 1
	}
	b = append(b, place(languages, x.language), place(countries, x.country), public)
	for _, v := range x.vector {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	b = append(append(b, byte(len(x.id))), x.id...)
	if x.object != x.id {
		b = append(b, x.object...)
	}
	return b
}

// readMember reports whether a member that record.member made passes the filter. If so, it
// fills in all of p but the text. reads has a bit for each language that the viewer reads.
func (p *post) readMember(b []byte, reads uint) (bool, error) {
	if len(b) < memberHead+4*dims+1 || len(b) < memberHead+4*dims+1+int(b[memberHead+4*dims]) {
		return false, fmt.Errorf("redis: a member of %d bytes", len(b))
	}
	p.likes, p.imp, p.language = int64(binary.LittleEndian.Uint32(b[8:])), int64(binary.LittleEndian.Uint32(b[20:])), b[24]
	if p.likes < 3 || p.imp >= 20000 || reads>>p.language&1 == 0 {
		return false, nil
	}
	p.at = int64(binary.LittleEndian.Uint64(b))
	p.comments, p.shares = int64(binary.LittleEndian.Uint32(b[12:])), int64(binary.LittleEndian.Uint32(b[16:]))
	p.country, p.public = b[25], b[26] == 1
	for i := range p.vector {
		p.vector[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[memberHead+4*i:]))
	}
	texts := string(b[memberHead+4*dims+1:])
	n := int(b[memberHead+4*dims])
	p.id, p.object = texts[:n], texts[n:]
	if p.object == "" {
		p.object = p.id
	}
	return true, nil
}

func timelineKey(dst []byte, author string, kind int) []byte {
	dst = append(append(dst, "t:"...), author...)
	dst = append(dst, ':')
	return strconv.AppendInt(dst, int64(kind), 10)
}

// fillRedis writes all records into sorted sets.
func (w *world) fillRedis(c *redisConn) error {
	const batch = 500 // entities whose commands are sent before their replies are read
	sent := 0
	for e := range w.entities {
		var sets [3][][]byte
		for _, x := range w.records(e) {
			sets[x.kind] = append(sets[x.kind], strconv.AppendInt(nil, x.at, 10), x.member())
		}
		for kind, set := range sets {
			if len(set) > 0 {
				c.command(append([][]byte{[]byte("ZADD"), timelineKey(nil, entityName(e), kind)}, set...)...)
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

// puller is a client of Redis. It is used by one goroutine.
type puller struct {
	seeker
	conn *redisConn
	key  []byte
	pool []*post // memory for the posts of candidates, which each answer uses again
}

// ask implements asker.
func (p *puller) ask(_ context.Context, q *question, a *answer) error {
	bound := strconv.AppendInt(nil, asOf-window.Milliseconds(), 10)
	for _, author := range q.follows {
		for kind := range kinds {
			p.key = timelineKey(p.key[:0], author, kind)
			p.conn.command([]byte("ZRANGEBYSCORE"), p.key, bound, []byte("+inf"))
		}
	}
	if err := p.conn.send(); err != nil {
		return err
	}
	reads := uint(0)
	for _, l := range q.reads {
		reads |= 1 << place(languages, l)
	}
	m, country, halfLife := &models[q.model], place(countries, q.country), models[q.model].halfLife(q)
	p.heap = p.heap[:0]
	for _, author := range q.follows {
		for kind := range kinds {
			members, err := p.conn.number('*')
			if err != nil {
				return err
			}
			for range members {
				b, err := p.conn.text()
				if err != nil {
					return err
				}
				x := p.next()
				passes, err := x.readMember(b, reads)
				if err != nil {
					return err
				}
				if passes {
					p.heap = append(p.heap, candidate{m.score(x, country, halfLife), x, author, uint8(kind)})
				}
			}
		}
	}
	a.items = p.best()
	return nil
}

// next returns a post of the pool that no candidate of this answer uses.
func (p *puller) next() *post {
	if len(p.heap) == len(p.pool) {
		p.pool = append(p.pool, new(post))
	}
	return p.pool[len(p.heap)]
}
