package rig

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/millrace/millrace/internal/kafka"
)

// Partition starts a partitioner of a binary ("": this one), waits until it has consumed all
// that [Backing.FillContent] has written, and ends it. It returns the CPU time that the
// process used. name must be new: it is the name of the consumer group too.
func (f *Family) Partition(b *Backing, binary, name string) (cpu time.Duration, err error) {
	look, err := kafka.NewInspector(kafka.At(b.Kafka))
	if err != nil {
		return 0, err
	}
	defer look.Close()
	before := f.Size()
	defer func() {
		if f.Ctx.Err() == nil { // else a process has failed, and the caller closes the family
			err = errors.Join(err, f.End(before))
		}
	}()
	p, err := f.startRole(binary, "partitioner", name, fmt.Sprintf(
		"brokers: [%q]\ntopic_prefix: %q\ncontent: [%q]\ngroup: %[4]s\ninstance: %[4]s\n", b.Kafka, b.sorted(), b.content(), name), runtime.NumCPU())
	if err != nil {
		return 0, err
	}
	wait, cancel := context.WithTimeout(f.Ctx, startup)
	defer cancel()
	for {
		lag, err := look.Lag(wait, name, b.content())
		if err == nil && lag == 0 {
			u, err := p.Used()
			return u.CPU, err
		}
		select {
		case <-wait.Done():
			return 0, errors.Join(context.Cause(wait), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
