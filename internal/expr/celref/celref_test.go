package celref

import (
	"math"
	"testing"

	"github.com/millrace/millrace"
)

func TestEval(t *testing.T) {
	in := &Input{
		Record: map[string]any{
			"likes": int64(3), "score": nil, "language": "en", "nan": math.NaN(), "ok": true, "tags": []string{"a", "b"},
			"features": []float64{1, 2}, "created_at": millrace.Time(1000), "place.country": "CH", "big": int64(math.MaxInt64),
		},
		Viewer: &millrace.Viewer{ID: "member:1", Attributes: map[string]any{"lang": "en"}, Features: map[string]float64{"x": 2}},
		AsOf:   61000,
	}
	for src, want := range map[string]Outcome{
		`record.likes > 2`: True,
		`record.likes > 2.5 && record.language == viewer.lang`: True,
		`record.likes > 5`:                                       False,
		`record.score > 1.0`:                                     Null,
		`record.score == null`:                                   True,
		`has(record.score)`:                                      False,
		`has(record.likes) && !has(viewer.none)`:                 True,
		`record.absent == null`:                                  True,
		`entity.followers > 1`:                                   Null,
		`record.score > 1.0 && record.likes > 5`:                 False,
		`record.score > 1.0 || record.likes > 2`:                 True,
		`record.nan > 1.0`:                                       NaN,
		`record.ok && record.nan <= record.score`:                NaN,
		`!(record.nan > 1.0)`:                                    True,
		`record.likes > 5 && record.nan > 1.0`:                   False,
		`record.nan == record.nan`:                               NaN,
		`record.big + 1 > 0`:                                     Error,
		`record.likes / 0 > 0`:                                   Error,
		`"a" in record.tags && 2 in record.features`:             True,
		`record.place.country == "CH"`:                           True,
		`as_of - record.created_at == duration("60s")`:           True,
		`record.likes == viewer.x + 1.0`:                         True,
		`record.score`:                                           Null,
		`record.ok`:                                              True,
		`record.language.matches("^e") && size(record.tags) < 3`: True,
		`viewer.id == "member:1"`:                                True,
	} {
		p, err := Compile(src)
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		if got := p.Eval(in); got != want {
			t.Errorf("%s: %v, want %v", src, got, want)
		}
	}
}
