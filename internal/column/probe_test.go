package column

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"
)

// stand writes a list where no number is aligned, and nothing may be read behind it:
// the next page is of nobody.
type stand struct {
	mem []byte
	end int
}

func newStand(t testing.TB, bytes int) *stand {
	t.Helper()
	page := syscall.Getpagesize()
	size := (bytes + page - 1) &^ (page - 1)
	mem, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err == nil {
		err = syscall.Mprotect(mem[size:], syscall.PROT_NONE)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return &stand{mem[:size], size}
}

// list adds a list before those that stand already.
func (s *stand) list(items []float64, width int) List {
	var b []byte
	for _, x := range items {
		switch width {
		case 1:
			b = append(b, byte(int8(x)))
		case 4:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		default:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
	}
	if s.end -= len(b); s.end < 0 {
		panic("no room")
	}
	copy(s.mem[s.end:], b)
	l := List{unsafe.Pointer(unsafe.SliceData(s.mem[s.end:])), int32(len(items)), int32(width)}
	if s.end > 0 {
		s.end--
	}
	return l
}

// drawn is items that a width holds.
func drawn(r *rand.Rand, n, width int) []float64 {
	items := make([]float64, n)
	kind := r.IntN(6)
	for i := range items {
		switch x := r.NormFloat64() * math.Pow(10, float64(r.IntN(6)-3)); {
		case width == 1 && kind == 0:
			items[i] = -128
		case width == 1 && kind == 1:
			items[i] = 127
		case width == 1 && kind == 2:
			items[i] = 0
		case width == 1:
			items[i] = float64(r.IntN(256) - 128)
		case kind == 0 && r.IntN(8) == 0:
			items[i] = []float64{math.Copysign(0, -1), 0, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat32, 5e-324}[r.IntN(7)]
		case kind == 1:
			items[i] = float64(r.IntN(5) - 2)
		case kind == 2:
			items[i] = math.Copysign(0, float64(r.IntN(2))-0.5)
		default:
			items[i] = x
		}
		if width == 4 {
			items[i] = float64(float32(items[i]))
		}
	}
	return items
}

// probed is what the list may be compared with: int16s, and numbers that are almost
// some.
func probed(r *rand.Rand, n int) []float64 {
	items := make([]float64, n)
	kind := r.IntN(9)
	for i := range items {
		switch kind {
		case 0:
			items[i] = math.MinInt16
		case 1:
			items[i] = math.MaxInt16
		case 2:
			items[i] = []float64{0, math.Copysign(0, -1)}[r.IntN(2)]
		case 3, 4:
			items[i] = float64(r.IntN(1<<16) - 1<<15)
		case 5:
			items[i] = r.NormFloat64()
		case 6:
			items[i] = float64(int64(r.Uint64()) >> r.IntN(60))
		default:
			items[i] = float64(r.IntN(200) - 100)
		}
	}
	if n > 0 {
		switch i := r.IntN(n); kind {
		case 7:
			items[i] = []float64{math.MinInt16 - 1, math.MaxInt16 + 1, 0.5, math.NaN(), math.Inf(1), 1 << 62, 1 << 63}[r.IntN(7)]
		case 8:
			items[i] = math.Copysign(0, -1)
		}
	}
	return items
}

// defined is what a sum is by its definition.
func defined(items, probe []float64, of summed) float64 {
	if len(items) != len(probe) || len(items) == 0 {
		return math.NaN()
	}
	var sum float64
	for i, x := range items {
		switch y := probe[i]; of {
		case squares:
			sum += float64(x * x)
		case differences:
			d := x - y
			sum += float64(d * d)
		default:
			sum += float64(x * y)
		}
	}
	return sum
}

// sameSum compares bits; every NaN is as good as another.
func sameSum(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

// ways runs a test with what the processor has, and in plain Go.
func ways(t *testing.T, test func(*testing.T)) {
	if hasAVX2 {
		t.Run("avx2", test)
	}
	t.Run("plain", func(t *testing.T) {
		defer without()()
		test(t)
	})
	t.Run("aligned", func(t *testing.T) {
		defer without()()
		defer func(could bool) { canSlide = could }(canSlide)
		canSlide = false
		test(t)
	})
}

// Lists of every width and length, in every mixture, have the sums that the definition
// gives, to the bit.
func TestProbe(t *testing.T) {
	ways(t, func(t *testing.T) {
		where := newStand(t, 1<<20)
		r := rand.New(rand.NewPCG(64, 8))
		var p Probe
		for round := range 6 * 301 {
			n := round % 301
			if round%50 == 0 {
				n = []int{510, 511, 512, 513, 2000}[r.IntN(5)]
			}
			probe := probed(r, n)
			p.Set(probe)
			where.end = len(where.mem)
			var lists []List
			var items [][]float64
			widths := [][]int{{1}, {4}, {8}, {1, 4, 8}, {1, 1, 1, 1, 1, 8}}[r.IntN(5)]
			for range r.IntN(30) {
				of, width := n, widths[r.IntN(len(widths))]
				if r.IntN(9) == 0 {
					of = []int{0, 1, n + 1, max(0, n-1), r.IntN(300)}[r.IntN(5)]
				}
				if list := drawn(r, of, width); of == 0 {
					items, lists = append(items, nil), append(lists, List{})
				} else {
					items, lists = append(items, list), append(lists, where.list(list, width))
				}
			}
			for _, of := range []summed{products, squares, differences} {
				got := make([]float64, len(lists))
				p.sum(got, lists, of)
				for i := range got {
					if want := defined(items[i], probe, of); !sameSum(got[i], want) {
						t.Fatalf("round %d, sum %d of %d lists, of %d and %d items of width %d: %v, want %v", round, of, len(lists), lists[i].n, n, lists[i].width, got[i], want)
					}
				}
			}
			if got, want := p.Square(), defined(probe, probe, squares); n > 0 && !sameSum(got, want) {
				t.Fatalf("the probe's square is %v, want %v", got, want)
			}
		}
	})
}

// The greatest sums that are added as integers are what they are as numbers: a lane of
// 32 bits holds them for as many items as the kernels take.
func TestProbeAtItsBounds(t *testing.T) {
	ways(t, func(t *testing.T) {
		where := newStand(t, 2<<20)
		var p Probe
		for _, n := range []int{1, 15, 16, 17, 64, 256, 510, 511, 512, 1024, 100_000, 1 << 20, 1<<20 + 1} {
			for _, x := range []float64{-128, 127} {
				for _, y := range []float64{math.MinInt16, math.MaxInt16} {
					items, probe := make([]float64, n), make([]float64, n)
					for i := range items {
						items[i], probe[i] = x, y
					}
					where.end = len(where.mem)
					p.Set(probe)
					lists, got := []List{where.list(items, 1)}, make([]float64, 1)
					if p.Dots(got, lists); got[0] != x*y*float64(n) {
						t.Errorf("%d times %v * %v: %v, want %v", n, x, y, got[0], x*y*float64(n))
					}
					if p.Squares(got, lists); got[0] != x*x*float64(n) {
						t.Errorf("%d times %v * %v: %v, want %v", n, x, x, got[0], x*x*float64(n))
					}
					if p.Differences(got, lists); got[0] != (x-y)*(x-y)*float64(n) {
						t.Errorf("%d times (%v - %v)^2: %v, want %v", n, x, y, got[0], (x-y)*(x-y)*float64(n))
					}
				}
			}
		}
	})
}

// Sums of zeros are 0 and never -0.
func TestProbeOfZeros(t *testing.T) {
	ways(t, func(t *testing.T) {
		where := newStand(t, 1<<20)
		minus := math.Copysign(0, -1)
		var p Probe
		for n := 1; n < 40; n++ {
			for _, x := range []float64{0, minus, 5, -5} {
				for _, y := range []float64{0, minus} {
					for _, width := range []int{1, 4, 8} {
						if width == 1 && x == 0 && math.Signbit(x) {
							continue
						}
						items, probe := make([]float64, n), make([]float64, n)
						for i := range items {
							items[i], probe[i] = x, y
						}
						where.end = len(where.mem)
						p.Set(probe)
						got := make([]float64, 1)
						if p.Dots(got, []List{where.list(items, width)}); got[0] != 0 || math.Signbit(got[0]) {
							t.Fatalf("%d times %v * %v in %d bytes: %v", n, x, y, width, got[0])
						}
					}
				}
			}
		}
	})
}

// A probe keeps its memory, and a sum makes no garbage.
func TestProbeAllocatesNothing(t *testing.T) {
	s := wholeRows(t, 64, 64)
	lists := make([]List, 64)
	for i := range lists {
		lists[i] = s.ListAt(0, i)
	}
	var p Probe
	probe, dst := make([]float64, 64), make([]float64, 64)
	if n := testing.AllocsPerRun(100, func() {
		p.Set(probe)
		p.Dots(dst, lists)
		p.Squares(dst, lists)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// wholeRows are rows of a list of small whole numbers.
func wholeRows(t testing.TB, rows, items int) *Slab {
	a := New(layout(t, feature[1:2]), rows, 0).Append()
	for i := range rows {
		list := make([]float64, items)
		for j := range list {
			list[j] = float64((i*31+j*7)%256 - 128)
		}
		r := a.Begin()
		r.SetDoubles(0, list)
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	return a.Slab()
}

// BenchmarkProbe gives ns a list of the sums, of lists that are beside the core,
// against the copy of each list and its sum, which is how products were computed.
func BenchmarkProbe(b *testing.B) {
	const rows, items = 64, 64
	r := rand.New(rand.NewPCG(1, 1))
	for _, width := range []int{1, 4, 8} {
		where := newStand(b, 1<<20)
		lists := make([]List, rows)
		for i := range lists {
			lists[i] = where.list(drawn(r, items, width), width)
		}
		for _, whole := range []bool{true, false} {
			probe := make([]float64, items)
			for i := range probe {
				if probe[i] = r.NormFloat64(); whole {
					probe[i] = float64(r.IntN(200) - 100)
				}
			}
			var p Probe
			p.Set(probe)
			dst := make([]float64, rows)
			name := fmt.Sprintf("width=%d/whole=%v/", width, whole)
			perList := func(b *testing.B) {
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/list")
			}
			b.Run(name+"products", func(b *testing.B) {
				for b.Loop() {
					p.Dots(dst, lists)
				}
				perList(b)
			})
			b.Run(name+"squares", func(b *testing.B) {
				for b.Loop() {
					p.Squares(dst, lists)
				}
				perList(b)
			})
			b.Run(name+"plain", func(b *testing.B) {
				defer without()()
				for b.Loop() {
					p.Dots(dst, lists)
				}
				perList(b)
			})
			b.Run(name+"copied", func(b *testing.B) {
				var copied []float64
				for b.Loop() {
					for i, l := range lists {
						copied = l.Append(copied[:0])
						dst[i] = defined(copied, probe, products)
					}
				}
				perList(b)
			})
		}
	}
}
