package query

// heap is a binary heap of candidates, the best at the root. It is typed by
// hand: container/heap's interface calls cost more than the comparisons.
type heap struct {
	q *Query
	c []candidate
}

func (h *heap) init() {
	for i := len(h.c)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *heap) pop() candidate {
	top := h.c[0]
	last := len(h.c) - 1
	h.c[0] = h.c[last]
	h.c = h.c[:last]
	h.down(0)
	return top
}

func (h *heap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.c) {
			return
		}
		if r := child + 1; r < len(h.c) && h.q.before(h.c[r], h.c[child]) {
			child = r
		}
		if !h.q.before(h.c[child], h.c[i]) {
			return
		}
		h.c[i], h.c[child] = h.c[child], h.c[i]
		i = child
	}
}
