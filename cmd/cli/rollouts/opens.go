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

// opens returns the built-in feeds that would open if the feed name had the definition to,
// or, where to is nil, were dropped. A built-in feed is closed if every request for it is
// refused. A private feed closes the built-in ones, since they would show what it drops.
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

// closed returns the names of the built-in feeds, sorted, if some definition closes them,
// and nil if none does.
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

// tellOpens prints which built-in feeds open. The word are is "are" after a change, and
// "would be" before it.
func tellOpens(w io.Writer, built []string, are string) {
	if len(built) > 0 {
		fmt.Fprintf(w, "no feed closes the built-in %s then: requests for them %s answered again, whoever asks, with what private feeds drop\n", strings.Join(built, " and "), are)
	}
}
