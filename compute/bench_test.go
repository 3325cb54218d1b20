package compute

import (
	"math"
	"testing"
)

// sink keeps the compiler from dropping what is measured.
var sink float64

func benchmark(b *testing.B, f func(float64) float64) {
	xs := make([]float64, 1024)
	for i := range xs {
		xs[i] = float64(i)*0.013 + 0.001
	}
	for b.Loop() {
		sum := 0.0
		for _, x := range xs {
			sum += f(x)
		}
		sink = sum
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(xs)), "ns/call")
}

func BenchmarkExp(b *testing.B)       { benchmark(b, Exp) }
func BenchmarkMathExp(b *testing.B)   { benchmark(b, math.Exp) }
func BenchmarkLog1p(b *testing.B)     { benchmark(b, Log1p) }
func BenchmarkMathLog1p(b *testing.B) { benchmark(b, math.Log1p) }
func BenchmarkDecays(b *testing.B) {
	ages, out := make([]float64, 256), make([]float64, 256)
	for i := range ages {
		ages[i] = float64(i) * 190
	}
	for b.Loop() {
		Decays(out, ages, 21600)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ages)), "ns/call")
}

func BenchmarkDecay(b *testing.B) {
	benchmark(b, func(x float64) float64 { return Decay(x, 7) })
}

// A look-up of one of 50 words in a table, and of 64 in a set.
func BenchmarkTable(b *testing.B) {
	var t Table
	words := make([]float64, 50)
	for i := range words {
		words[i] = float64(i*i) + 0.5
	}
	t.SetNumbers(words)
	for i := 0; b.Loop(); i++ {
		sink += t.Number(words[i%50])
	}
}

func BenchmarkSet(b *testing.B) {
	words := make([]uint64, 200)
	for i := range words {
		words[i] = uint64(i*i)<<8 | 3
	}
	s, n := NewSet(words...), uint64(0)
	for b.Loop() {
		n += s.In(words[:64])
	}
	sink = float64(n)
}
