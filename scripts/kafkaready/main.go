// Kafkaready exits 0 once a Kafka answers, and 1 when it does not in time. scripts/kafka waits with it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/millrace/millrace/internal/kafka"
)

func main() {
	wait := flag.Duration("wait", 30*time.Second, "how long to wait")
	coordinators := flag.Bool("coordinators", false, "wait for those of groups and transactions too")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *wait)
	defer cancel()
	ready := kafka.WaitReady
	if *coordinators {
		ready = kafka.WaitCoordinators
	}
	if err := ready(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
