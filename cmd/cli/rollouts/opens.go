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

// opens returns the built-in feeds that are closed now, so that every request for them is
// refused, and that would be open with another definition of the feed name, or, where to is
// nil, without one. A private feed closes the built-in ones: they would show what it drops.
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

// closed returns the built-in feeds if some definition closes them, sorted; else nil.
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

// tellOpens prints which built-in feeds open. The verb are is "are" or "would be".
func tellOpens(w io.Writer, built []string, are string) {
	if len(built) > 0 {
		fmt.Fprintf(w, "no feed closes the built-in %s then: requests for them %s answered again, whoever asks, with what private feeds drop\n", strings.Join(built, " and "), are)
	}
}
