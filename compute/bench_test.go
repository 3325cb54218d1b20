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
