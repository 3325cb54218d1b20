package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/millrace/millrace/internal/minicluster"
)

// Backing is the log and etcd, in processes of their own so that neither their
// CPU nor their garbage counts as anybody else's.
type Backing struct {
	Kafka, Etcd string
	Given       bool // both were there before
	// Prefix is before every topic, and part of every cluster's name in etcd, so
	// that concurrent runs do not collide.
	Prefix string

	own    *Process
	kafka  int // the processes, where they are known
	etcd   int
	unseen error // why they are not
}

// StartBacking starts both in one process, kept in the directory of f.
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

// GivenBacking uses those that listen at two addresses.
func GivenBacking(kafka, etcd, prefix string) *Backing {
	b := &Backing{Kafka: kafka, Etcd: etcd, Given: true, Prefix: prefix}
	var err error
	b.kafka, err = listener(kafka)
	b.unseen = err
	b.etcd, err = listener(etcd)
	b.unseen = errors.Join(b.unseen, err)
	return b
}

// String says what they are.
func (b *Backing) String() string {
	if b.Given {
		return fmt.Sprintf("the Kafka at %s and the etcd at %s", b.Kafka, b.Etcd)
	}
	return "a log and an etcd in one process of this binary (kfake and etcd's own server), not a real Kafka"
}

// Used is what the log and etcd have used together. An error says that it is
// not known.
func (b *Backing) Used() (Used, error) {
	if b.own != nil {
		return b.own.Used()
	}
	if b.unseen != nil {
		return Used{}, b.unseen
	}
	log, err := used(b.kafka)
	if err != nil || b.etcd == b.kafka { // both in one process, as of millrace dev
		return log, err
	}
	etcd, err := used(b.etcd)
	return log.Plus(etcd), err
}

// ServeBacking is the process of [StartBacking]: it prints its addresses and
// works until ctx or input ends.
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

// UntilEnd waits for the end of ctx or of a process's input, by which whoever
// started it says that it is over.
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
