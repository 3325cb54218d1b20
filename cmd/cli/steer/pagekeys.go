package steer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/secrets"
)

func clusterPageKeys(cm *clusters.Flags) *cobra.Command {
	var rotate, revoke bool
	var output display.Form
	a := command.Act{Cluster: cm}
	c := &cobra.Command{
		Use:   "page-keys [--rotate [--revoke] [--apply]]",
		Short: "Show the keys that page tokens are signed with, and since when; replace them",
		Long: `Shows since when each key signs page tokens, and until when tokens of it are
taken; never the keys.

--rotate makes another, which signs a minute later, when all brokers that hear etcd
know it; the command says which do.
Pages that were begun before go on by the old one for a day, as long as tokens
live. --revoke is for a key that others have got hold of: the new one signs at
once, a key that was yet to sign never does, and all pages that were begun before
it are refused (INVALID_PAGE_TOKEN), for which callers ask for the first page again. Rotate when all brokers are of
this version: older ones know the first key alone.`,
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if !rotate && (revoke || a.Apply) {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "rotate", Detail: "nothing is to be done without it", WayOut: "add --rotate, or leave the other flags out"}
		}
		cl, err := cm.Open(c.Context())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		all, err := secrets.All(c.Context(), cl, pagetoken.Secret)
		if err != nil {
			return err
		}
		w, shown := c.OutOrStdout(), pageKeysOf(all, time.Now())
		if !rotate {
			return output.Write(w, shown, shown.write)
		}
		from := func() time.Time { return time.Now().Add(secrets.Ahead).Truncate(time.Millisecond) } // by then all brokers that hear etcd know the key
		if revoke {
			from = func() time.Time { return time.Now().Truncate(time.Millisecond) }
		}
		next := secrets.Generation{From: from(), Alone: revoke}
		what := fmt.Sprintf("a new key would sign from %s on; pages of the present one go on until %s", display.ShortTime(next.From), display.ShortTime(next.From.Add(pagetoken.Life)))
		if revoke {
			what = "a new key would sign at once; all pages that are begun are refused"
		}
		shown.Next = &nextKey{next.From.UTC(), revoke}
		if !output.JSON() {
			fmt.Fprintln(w, what)
		}
		if err := clusters.NotLost(c.Context(), c, cl); err != nil {
			return err
		}
		ok, err := a.Meant(c)
		if err == nil && ok {
			next.From = from() // again, since the user may have taken long to agree
			shown.Next.SignsFrom = next.From.UTC()
			err = shown.rotated(c.Context(), cl, next)
		}
		if err != nil {
			return err
		}
		return output.Write(w, shown, func(w io.Writer) error {
			if !shown.Applied {
				return nil
			}
			return errors.Join(shown.write(w), shown.Heard.Write(w))
		})
	}
	f := c.Flags()
	f.BoolVar(&rotate, "rotate", false, "make another key")
	f.BoolVar(&revoke, "revoke", false, "with --rotate: take no token of the keys before")
	a.Flags(c)
	display.Flag(c, &output)
	return c
}

// pageKeys are the keys of a cluster as JSON and, with --rotate, the key that is to be made.
type pageKeys struct {
	Keys            []pageKey `json:"keys"` // the newest first
	Next            *nextKey  `json:"next,omitempty"`
	Applied         bool      `json:"applied"`
	*clusters.Heard           // which brokers know the new key; nil unless Applied
}

// pageKey says from when on a key signs page tokens, and until when brokers accept the tokens
// that it signed.
type pageKey struct {
	SignsFrom *time.Time `json:"signs_from,omitempty"`  // left out: it is the first key, and has always signed
	Until     *time.Time `json:"taken_until,omitempty"` // left out: no newer key ends it yet
	Taken     bool       `json:"taken"`                 // brokers still accept its tokens
}

// nextKey is a key that is to be made.
type nextKey struct {
	SignsFrom time.Time `json:"signs_from"`
	Alone     bool      `json:"revokes"` // brokers accept no tokens of the keys before it
}

func pageKeysOf(all []secrets.Generation, now time.Time) *pageKeys {
	shown := &pageKeys{Keys: []pageKey{}}
	for i, g := range all {
		k := pageKey{Taken: true}
		if from := g.From.UTC(); !g.From.IsZero() {
			k.SignsFrom = &from
		}
		if end := secrets.Until(all, i, pagetoken.Life).UTC(); !end.IsZero() {
			k.Until, k.Taken = &end, !now.After(end)
		}
		shown.Keys = append(shown.Keys, k)
	}
	return shown
}

// rotated makes next a key of the cluster, and sets in p what is so after that. Keys whose
// tokens expired long ago (as long again as a token lives) are deleted.
func (p *pageKeys) rotated(ctx context.Context, cl *cluster.Client, next secrets.Generation) error {
	if err := secrets.Rotate(ctx, cl, pagetoken.Secret, next, time.Now().Add(-2*pagetoken.Life)); err != nil {
		return err
	}
	all, err := secrets.All(ctx, cl, pagetoken.Secret)
	p.Keys, p.Applied, p.Heard = pageKeysOf(all, time.Now()).Keys, true, clusters.HeardOf(ctx, cl)
	return err
}

func (p *pageKeys) write(w io.Writer) error {
	if len(p.Keys) == 0 {
		_, err := fmt.Fprintln(w, "no key yet: the first broker that starts makes it")
		return err
	}
	t := display.NewTable(w)
	t.Printf("SIGNS FROM\tITS TOKENS ARE TAKEN\n")
	for _, k := range p.Keys {
		from, taken := "the first", "always"
		if k.SignsFrom != nil {
			from = display.ShortTime(*k.SignsFrom)
		}
		switch {
		case !k.Taken:
			taken = "no longer"
		case k.Until != nil:
			taken = "until " + display.ShortTime(*k.Until)
		}
		t.Printf("%s\t%s\n", from, taken)
	}
	return t.Flush()
}
