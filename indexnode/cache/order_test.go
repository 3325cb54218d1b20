package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Keys come out in the order they last entered, and old places are
// forgotten in the end.
func TestOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	o := newOrder()
	var model []place // that are there, oldest first
	is := func(p place) bool { return slices.Contains(model, p) }
	last := place{}
	for range 40_000 {
		switch n := r.IntN(10); {
		case n < 5 || len(model) == 0:
			last = place{last.tag + 1, uint8(last.tag) % 16}
			model = append(model, last)
			o.enter(entry{last, fmt.Append(nil, last)})
		case n < 8:
			i := r.IntN(len(model))
			model = slices.Delete(model, i, i+1)
			o.leave()
		default:
			e := o.pop()
			for !is(e.place) {
				e = o.pop()
			}
			p := e.place
			if p != model[0] || string(e.name) != fmt.Sprint(p) {
				t.Fatalf("out came %v with the name %s, and %v is the oldest", p, e.name, model[0])
			}
			model = model[1:]
			if n == 8 { // touched
				model = append(model, p)
				o.add(e)
			} else {
				o.leave()
			}
		}
		o.tidy(is)
		if o.keys != len(model) || o.places > 2*o.keys+maxOld {
			t.Fatalf("%d keys in %d places, want %d keys", o.keys, o.places, len(model))
		}
	}
}

// A key that leaves and enters again and again, while nothing is evicted, does
// not fill the memory, and its old places are not taken for the new one.
func TestOrderForgetsWhoLeft(t *testing.T) {
	c := withRoom(t, 3, timeline(t, 1))
	c.Put(key(1), Empty)
	c.Put(key(2), Empty)
	for range 10*maxOld + 3 {
		c.Remove(key(2))
		c.Put(key(2), Empty)
	}
	o := &c.mu.lists[skinny].order
	if o.keys != 2 || o.places > 2*2+maxOld {
		t.Errorf("%d keys in %d places", o.keys, o.places)
	}
	c.Put(key(3), Empty)
	c.Put(key(4), Empty)
	if get(t, c, key(1)) != nil || get(t, c, key(2)) == nil || get(t, c, key(4)) == nil {
		t.Error("not the oldest was evicted")
	}
}
