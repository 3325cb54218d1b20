package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

// readyCommand is for images without a shell, whose health the container's
// engine asks by a command.
func readyCommand() *cobra.Command {
	var ports []string
	c := &cobra.Command{
		Use:   "ready",
		Short: "Say whether roles are ready, by their admin ports; fails unless all are",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), checkTimeout)
			defer cancel()
			said, err := (&doctor{ports: ports}).rolesReady(ctx)
			if err == nil {
				_, err = fmt.Fprintln(c.OutOrStdout(), "ready:", said)
			}
			return err
		},
	}
	c.Flags().StringSliceVar(&ports, "admin", []string{"127.0.0.1:6060"}, "admin ports, host:port each")
	return c
}
