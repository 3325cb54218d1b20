package findings

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/partition"
)

// Nothing returns the stage, and a sentence, of a record that no node found in a timeline:
// Unanswered if a partition that may have it is missing, else Never.
func (s *Search) Nothing() (stage, detail string) {
	lacking := map[string]int{}
	for p, why := range s.Missing {
		if s.Entity == "" || p == partition.Of(millrace.Entity(s.Entity)) {
			lacking[why]++
		}
	}
	if len(lacking) > 0 {
		var whys []string
		for _, why := range slices.Sorted(maps.Keys(lacking)) {
			whys = append(whys, fmt.Sprintf("%d %s", lacking[why], why))
		}
		return Unanswered, "it may be on a partition that did not answer: " + strings.Join(whys, ", ")
	}
	where := "no timeline of the entities asked"
	if s.Entity != "" {
		where = "no timeline of " + s.Entity
	}
	return Never, where + " has it, or has had it deleted: it was not published, was refused (look in the dead letters), went to another entity, or retention has long dropped it"
}

// Detail returns a finding's stage as a sentence. Search.Findings must have returned f.
func (s *Search) Detail(f *feedv1.Finding) string {
	timeline, at := f.Entity+"/"+f.Type, millrace.TimeOf(f.GetTime().AsTime())
	switch f.Stage {
	case Deleted:
		return fmt.Sprintf("version %d, of %s, deleted it from %s", f.Version, at, timeline)
	case Expired:
		return fmt.Sprintf("retention has dropped it from %s: its time is %s", timeline, at)
	case NotAsked:
		if !s.Asked {
			return fmt.Sprintf("it is in %s, and the request does not ask for %s", timeline, f.Entity)
		}
		return fmt.Sprintf("it is in %s, and the types asked are %s", timeline, strings.Join(s.groups[f].Query.GetTypes(), ", "))
	case Outside:
		if from := millrace.Time(s.groups[f].Query.GetFromMs()); at < from {
			return fmt.Sprintf("its time, %s, is before the window, which begins at %s", at, from)
		}
		return fmt.Sprintf("its time, %s, is behind the window, which ends before %s", at, millrace.Time(s.Query.GetToMs()))
	case Filtered:
		return "the filter drops it: " + clauseText(f.GetClause())
	case Served:
		if s.Query.DistinctObjects {
			return fmt.Sprintf("an earlier page showed its object, %s", f.Object)
		}
		return "an earlier page showed it"
	case BelowCut:
		return s.cutText(f)
	case Capped:
		return fmt.Sprintf("it scores %s, and %d of %s rank above it, as many as the feed shows of an entity: %s", number(f.GetScore()), len(f.Rivals), f.Entity, names(f.Rivals))
	case Deduplicated:
		text := fmt.Sprintf("%s of %s/%s, about the same object, %s, ranks above it, at place %d of the answer", f.Rivals[0].GetId(), f.Rivals[0].GetEntity(), f.Rivals[0].GetType(), f.Object, f.Place)
		if f.Also {
			text += ", and names it as also"
		}
		return text
	}
	return fmt.Sprintf("it is in the answer, at place %d", f.Place)
}

// cutText returns the sentence of a record that is below the answer's last item: how far.
func (s *Search) cutText(f *feedv1.Finding) string {
	last := f.Rivals[0]
	text := fmt.Sprintf("it scores %s and is number %d of those scored; the last of the %d items, %s, scores %s", number(f.GetScore()), f.Rank, len(s.entries), last.GetId(), number(last.GetScore()))
	switch {
	case millrace.CompareScores(f.GetScore(), last.GetScore()) != 0:
		if short := last.GetScore() - f.GetScore(); !math.IsNaN(short) {
			return text + ", " + number(short) + " more"
		}
		return text
	case f.GetTime().AsTime().Before(last.GetTime().AsTime()):
		return text + " as well, and is newer"
	}
	return text + " as well, is as new, and comes first by id"
}

func names(rivals []*feedv1.Rival) string {
	var ids []string
	for _, r := range rivals {
		ids = append(ids, r.GetId())
	}
	return strings.Join(ids, ", ")
}

func number(x float64) string { return fmt.Sprintf("%.6g", x) }

// clauseText says what a clause of the filter evaluated to for a record, and the values
// of its operands.
func clauseText(c *feedv1.FilterClause) string {
	outcome := c.GetOutcome()
	switch outcome {
	case "nan":
		outcome = "false, for it compares NaN"
	case "error":
		outcome = "an error"
	}
	text := c.GetClause() + " is " + outcome
	var operands []string
	for _, o := range c.GetOperands() {
		operands = append(operands, o.GetName()+" = "+valueText(o.GetValue()))
	}
	if len(operands) > 0 {
		text += ", where " + strings.Join(operands, ", ")
	}
	return text
}

// maxValueText is how many characters of a value a sentence shows.
const maxValueText = 100

func valueText(v *structpb.Value) string {
	raw, err := json.Marshal(v.AsInterface())
	if err != nil {
		return "?"
	}
	if text := []rune(string(raw)); len(text) > maxValueText {
		return string(text[:maxValueText]) + "…"
	}
	return string(raw)
}
