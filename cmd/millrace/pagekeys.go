package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/internal/cluster"
)

// spread is until a new page key signs, so that all brokers know it by then.
const spread = time.Minute

func clusterPageKeys(cm *Common) *cobra.Command {
	var rotate, revoke bool
	a := act{cm: cm}
	c := &cobra.Command{
		Use:   "page-keys [--rotate [--revoke] [--apply]]",
		Short: "Show the keys that page tokens are signed with, and since when; replace them",
		Long: `Shows since when each key signs page tokens, and until when tokens of it are
taken; never the keys.

--rotate makes another, which signs from a minute on, when all brokers know it.
Pages that were begun before go on by the old one for a day, as long as tokens
live. --revoke is for a key that others have got hold of: the new one signs at
once, and all pages that were begun before it are refused (INVALID_PAGE_TOKEN),
for which callers ask for the first page again. Rotate when all brokers are of
this version: older ones know the first key alone.`,
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if !rotate && (revoke || a.apply) {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "rotate", Detail: "nothing is to be done without it", WayOut: "add --rotate, or leave the other flags out"}
		}
		cl, err := cm.reachCluster(c.Context())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		all, err := cl.SecretsOf(c.Context(), broker.PagesSecret)
		if err != nil {
			return err
		}
		if !rotate {
			return showPageKeys(c.OutOrStdout(), all, time.Now())
		}
		next := cluster.Generation{From: time.Now().Add(spread).Truncate(time.Millisecond), Alone: revoke}
		what := fmt.Sprintf("a new key would sign from %s on; pages of the present one go on until %s", shortTime(next.From), shortTime(next.From.Add(broker.TokenLife)))
		if revoke {
			next.From = time.Now().Truncate(time.Millisecond)
			what = "a new key would sign at once; all pages that are begun are refused"
		}
		fmt.Fprintln(c.OutOrStdout(), what)
		if err := notLost(c.Context(), c, cl); err != nil {
			return err
		}
		if ok, err := a.meant(c); !ok {
			return err
		}
		if err := cl.Rotate(c.Context(), broker.PagesSecret, next, time.Now().Add(-2*broker.TokenLife)); err != nil {
			return err
		}
		return rotated(c.Context(), c.OutOrStdout(), cl)
	}
	f := c.Flags()
	f.BoolVar(&rotate, "rotate", false, "make another key")
	f.BoolVar(&revoke, "revoke", false, "with --rotate: take no token of the keys before")
	a.flags(c)
	return c
}

func rotated(ctx context.Context, w io.Writer, cl *cluster.Client) error {
	all, err := cl.SecretsOf(ctx, broker.PagesSecret)
	if err != nil {
		return err
	}
	return showPageKeys(w, all, time.Now())
}

// showPageKeys shows what becomes of tokens, by the key that signed them. The
// newest key is the first.
func showPageKeys(w io.Writer, all []cluster.Generation, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no key yet: the first broker that starts makes it")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SIGNS FROM\tITS TOKENS ARE TAKEN")
	for i, g := range all {
		from := "the first"
		if !g.From.IsZero() {
			from = shortTime(g.From)
		}
		taken := "always"
		if end := cluster.Until(all, i, broker.TokenLife); !end.IsZero() && now.After(end) {
			taken = "no longer"
		} else if !end.IsZero() {
			taken = "until " + shortTime(end)
		}
		fmt.Fprintf(t, "%s\t%s\n", from, taken)
	}
	return t.Flush()
}

func shortTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
