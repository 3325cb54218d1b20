// Kafkaready exits 0 once a Kafka and its coordinators answer, and 1 when they
// do not in time. scripts/kafka waits with it.
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
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *wait)
	defer cancel()
	if err := kafka.WaitCoordinators(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
