package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/millrace/millrace/internal/minicluster"
)

// backing is the log and etcd, in a process of their own so that neither
// their CPU nor their garbage counts as anybody else's.
type backing struct {
	kafka, etcd string
}

func startBacking(f *family) (*backing, error) {
	_, out, err := f.start("backing", "", true, runtime.NumCPU(), "bench", "backing", "--data", f.dir)
	if err != nil {
		return nil, err
	}
	b := &backing{}
	if _, err := fmt.Fscanln(out, &b.kafka, &b.etcd); err != nil {
		<-f.ctx.Done() // it ended, and its log says why
		return nil, context.Cause(f.ctx)
	}
	return b, nil
}

// Backing is that process: it prints its addresses and works until ctx or
// input ends.
func Backing(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
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
