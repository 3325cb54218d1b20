package rollouts

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/leans"
)

// opens returns the built-in feeds that are closed to every caller now, and would
// not be with another definition of a feed, or with none: nil.
func (f *feedStore) opens(ctx context.Context, name string, to *feeds.Feed) ([]string, error) {
	all, err := f.Definitions(ctx)
	if err != nil {
		return nil, err
	}
	now := closed(all)
	delete(all, name)
	if to != nil {
		all[name] = leans.Definition{Feed: *to, Edition: "to come"}
	}
	then := closed(all)
	return slices.DeleteFunc(now, func(built string) bool { return built == name || slices.Contains(then, built) }), nil
}

// closed returns the built-in feeds that some definition closes.
func closed(all map[string]leans.Definition) (names []string) {
	closes := false
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d := all[name]
		closes = closes || d.Forbids().Recent
		if d.Edition == "" {
			names = append(names, name)
		}
	}
	if !closes {
		return nil
	}
	return names
}

// tellOpens says which built-in feeds open, "are" or "would be".
func tellOpens(w io.Writer, built []string, are string) {
	if len(built) > 0 {
		fmt.Fprintf(w, "no feed closes the built-in %s then: requests for them %s answered again, whoever asks, with what private feeds drop\n", strings.Join(built, " and "), are)
	}
}
