package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/millrace/millrace/internal/minicluster"
)

// Backing is the log (Kafka) and etcd. They run in processes of their own, so that their CPU
// time and their garbage collection do not count as a role's.
type Backing struct {
	Kafka, Etcd string // host:port
	Given       bool   // both ran before, and were not started by this package
	// Prefix is before every topic, and part of every cluster's name in etcd, so
	// that concurrent runs do not collide.
	Prefix string

	own    *Process // the process that runs both; nil if they were given
	kafka  int      // the process id of a given Kafka
	etcd   int      // the process id of a given etcd
	unseen error    // why the process ids are not known; nil: they are
}

// StartBacking starts both in one process of this binary, with their files in the directory
// of f.
func StartBacking(f *Family) (*Backing, error) {
	p, out, err := f.Start("backing", runtime.NumCPU(), "bench", "backing", "--data", f.Dir)
	if err != nil {
		return nil, err
	}
	b := &Backing{own: p}
	if _, err := fmt.Fscanln(out, &b.Kafka, &b.Etcd); err != nil {
		<-f.Ctx.Done() // it ended, and its log says why
		return nil, context.Cause(f.Ctx)
	}
	return b, nil
}

// GivenBacking returns the Kafka and the etcd that listen at two addresses, host:port.
func GivenBacking(kafka, etcd, prefix string) *Backing {
	b := &Backing{Kafka: kafka, Etcd: etcd, Given: true, Prefix: prefix}
	var err error
	b.kafka, err = listener(kafka)
	b.unseen = err
	b.etcd, err = listener(etcd)
	b.unseen = errors.Join(b.unseen, err)
	return b
}

// String says in words what the log and etcd are.
func (b *Backing) String() string {
	if b.Given {
		return fmt.Sprintf("the Kafka at %s and the etcd at %s", b.Kafka, b.Etcd)
	}
	return "a log and an etcd in one process of this binary (kfake and etcd's own server), not a real Kafka"
}

// Used returns what the log and etcd have used together. The error says why it is not
// known.
func (b *Backing) Used() (Used, error) {
	if b.own != nil {
		return b.own.Used()
	}
	if b.unseen != nil {
		return Used{}, b.unseen
	}
	log, err := used(b.kafka)
	if err != nil || b.etcd == b.kafka { // both are in one process, as millrace dev runs them
		return log, err
	}
	etcd, err := used(b.etcd)
	return log.Plus(etcd), err
}

// ServeBacking is the process that [StartBacking] starts. It writes both addresses to out,
// and runs until ctx or the input ends.
func ServeBacking(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
	etcd, err := minicluster.StartEtcd(ctx, dir, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer etcd.Close()
	kafka, err := minicluster.StartKafka(dir, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer kafka.Close()
	if _, err := fmt.Fprintln(out, kafka.Addr(), etcd.Addr()); err != nil {
		return err
	}
	return UntilEnd(ctx, in)
}

// UntilEnd waits until ctx or the input ends. The process that started this one closes its
// input to end it.
func UntilEnd(ctx context.Context, in io.Reader) error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	}()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return errors.Join(err, ctx.Err())
	}
}
