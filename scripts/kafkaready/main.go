// Kafkaready exits with 0 once a Kafka answers, and with 1 if it does not in time. Its
// arguments are addresses of brokers, host:port each. scripts/kafka uses it to wait.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/secure"
)

func main() {
	wait := flag.Duration("wait", 30*time.Second, "how long to wait")
	secured := flag.String("secured", "", "the directory of what a client of a secured Kafka needs: ca.pem, client.pem, client.key, user, password")
	coordinators := flag.Bool("coordinators", false, "wait for those of groups and transactions too")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *wait)
	defer cancel()
	access := kafka.Access{}
	if dir := *secured; dir != "" {
		user, err := os.ReadFile(filepath.Join(dir, "user"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		access.TLS = secure.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client.key")}
		access.SASL = kafka.SASL{Mechanism: "SCRAM-SHA-512", Login: secure.Login{Username: string(user), PasswordFile: filepath.Join(dir, "password")}}
	}
	ready := kafka.WaitReady
	if *coordinators {
		ready = kafka.WaitCoordinators
	}
	if err := ready(ctx, access.At(nil, flag.Args()...)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
