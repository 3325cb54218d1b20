package models

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/millrace/millrace"
)

// readPlaces reads a CSV file of place,propensity: the probability, above 0 and at most 1,
// that a viewer looks at the item at a place of a page. Places begin at 1, and the file has
// each once.
func readPlaces(file string) (map[int64]float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	bad := func(format string, args ...any) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "positions", Detail: file + fmt.Sprintf(format, args...), WayOut: "write place,propensity into the first line, and below it 1,1 and 2,0.6, for one: each place once, its propensity above 0 and at most 1"}
	}
	rows := csv.NewReader(f)
	if head, err := rows.Read(); err != nil || !slices.Equal(head, []string{"place", "propensity"}) {
		return nil, bad(" does not begin with place,propensity")
	}
	const most = 100_000
	all := map[int64]float64{}
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, bad(": %v", err)
		}
		line, _ := rows.FieldPos(0)
		place, bad1 := strconv.ParseInt(row[0], 10, 64)
		looked, bad2 := strconv.ParseFloat(row[1], 64)
		switch {
		case bad1 != nil || place < 1:
			return nil, bad(":%d: %.40q is no place", line, row[0])
		case bad2 != nil || !(looked > 0 && looked <= 1):
			return nil, bad(":%d: %.40q is no propensity", line, row[1])
		case all[place] != 0:
			return nil, bad(":%d: place %d stands twice", line, place)
		case len(all) == most:
			return nil, bad(" has more than %d places", most)
		}
		all[place] = looked
	}
	if len(all) == 0 {
		return nil, bad(" has no place")
	}
	return all, nil
}
