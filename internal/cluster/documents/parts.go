package documents

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// A document that is larger than keyspace.MaxDocumentBytes is kept in parts. Their
// keys are outside the watched prefix and have the checksum of the whole document,
// so parts never change. The document itself is then a line that names them. One
// transaction writes that line, if all parts are there, and removes the parts of
// the former document. So a reader finds the old document or the new one.

// partsMagic is how the line of a document in parts begins.
const partsMagic = "millrace parts 1"

// parts is what a document's line says of its parts.
type parts struct {
	count, bytes int
	sum          string // SHA-256 of the whole, in hex
}

func partsOf(body []byte) parts {
	return parts{PartCount(len(body)), len(body), Checksum(body)}
}

// PartCount returns how many parts a document of so many bytes takes.
func PartCount(bytes int) int {
	return (bytes + keyspace.MaxDocumentBytes - 1) / keyspace.MaxDocumentBytes
}

// Checksum is the SHA-256 of a body, in hex.
func Checksum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func (p parts) line() string { return fmt.Sprintf("%s %d %d %s", partsMagic, p.count, p.bytes, p.sum) }

// parseParts reads a document that is a line as parts.line writes it; ok is false if it is
// not.
func parseParts(doc string) (p parts, ok bool) {
	if !strings.HasPrefix(doc, partsMagic) {
		return p, false
	}
	_, err := fmt.Sscanf(doc, partsMagic+" %d %d %s", &p.count, &p.bytes, &p.sum)
	return p, err == nil && p.bytes > 0 && p.bytes <= keyspace.MaxPartedBytes && p.count == PartCount(p.bytes)
}

// partsPrefix returns the prefix of the keys of all parts of a document, whatever checksum
// they have.
func (d *Kind) partsPrefix(name string) string {
	return d.c.Prefix() + "parts/" + d.kind + "/" + name + "/"
}

func (d *Kind) partKey(name string, p parts, i int) string {
	return fmt.Sprintf("%s%s/%03d", d.partsPrefix(name), p.sum, i)
}

// putParts is PutIf for a document that needs parts. It first writes the parts, and then the
// line that names them.
func (d *Kind) putParts(ctx context.Context, name string, body []byte, conditions []clientv3.Cmp) (bool, error) {
	if len(body) > keyspace.MaxPartedBytes {
		return false, &millrace.Error{
			Reason: millrace.ReasonTooLarge,
			Detail: fmt.Sprintf("%s is %d bytes, more than %d", name, len(body), keyspace.MaxPartedBytes),
			WayOut: "make it smaller: of a model, fewer trees, leaves or golden rows",
		}
	}
	p := partsOf(body)
	there := slices.Clone(conditions)
	for i := range p.count {
		part, key := body[i*keyspace.MaxDocumentBytes:min((i+1)*keyspace.MaxDocumentBytes, len(body))], d.partKey(name, p, i)
		call, cancel := context.WithTimeout(ctx, d.c.AskTime())
		_, err := d.c.Etcd().Put(call, key, string(part))
		cancel()
		if err != nil {
			d.unwrite(name, p)
			return false, d.c.Unanswered(err)
		}
		there = append(there, clientv3.Compare(clientv3.CreateRevision(key), ">", 0))
	}
	all, own := d.partsPrefix(name), d.partsPrefix(name)+p.sum+"/"
	call, cancel := context.WithTimeout(ctx, d.c.AskTime())
	defer cancel()
	put, err := d.c.Etcd().Txn(call).If(there...).Then(
		clientv3.OpPut(d.Key(name), p.line()),
		clientv3.OpDelete(all, clientv3.WithRange(own)),
		clientv3.OpDelete(clientv3.GetPrefixRangeEnd(own), clientv3.WithRange(clientv3.GetPrefixRangeEnd(all))),
	).Commit()
	if err == nil && put.Succeeded {
		return true, nil
	}
	d.unwrite(name, p)
	if err == nil && len(conditions) == 0 {
		err = errors.New("somebody else put it at the same time; try again")
	}
	return false, d.c.Unanswered(err)
}

// unwrite removes the parts of a document that was not put after all. It keeps them if the
// document's line names them: another process may have put the same, or the answer to our own
// put was lost. A process that is still writing the same parts finds them gone, and its put
// fails. unwrite does not use the context of the put, which may be over.
func (d *Kind) unwrite(name string, p parts) {
	ctx, cancel := context.WithTimeout(d.c.Context(), d.c.AskTime())
	defer cancel()
	got, err := d.c.Etcd().Get(ctx, d.Key(name))
	if err != nil {
		return // the next put of the document removes them
	}
	revision := int64(0)
	if len(got.Kvs) > 0 {
		if string(got.Kvs[0].Value) == p.line() {
			return
		}
		revision = got.Kvs[0].ModRevision
	}
	_, _ = d.c.Etcd().Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(d.Key(name)), "=", revision)).
		Then(clientv3.OpDelete(d.partsPrefix(name)+p.sum+"/", clientv3.WithPrefix())).Commit()
}

// join replaces the documents of a snapshot that are in parts by their whole bodies. If a
// document cannot be read, is too large and not in parts, or finds no room in memory, s gets
// the version that is known here instead, or none if there is none; s.Unread and s.Fault say
// so. First come the documents that have not changed, which need no read. join returns an
// error if there is no room even for these and the documents without parts.
func (d *Kind) join(ctx context.Context, s *keyspace.Snapshot) error {
	old := d.Current()
	bytes := s.Size() // of the documents in s, as far as join has put them together
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(s.Values)) {
		v := s.Values[name]
		p, parted := parseParts(string(v.Data))
		if !parted && len(v.Data) <= keyspace.MaxDocumentBytes {
			continue
		}
		before, had := old[name]
		if parted && had && before.Version == v.Version && len(before.Body) == p.bytes && Checksum([]byte(before.Body)) == p.sum {
			s.Values[name] = keyspace.Value{Data: []byte(before.Body), Version: v.Version}
			bytes += p.bytes - len(v.Data)
			continue
		}
		changed = append(changed, name)
	}
	if err := s.Fits(bytes); err != nil {
		return err
	}
	for _, name := range changed {
		v, before := s.Values[name], old[name]
		bytes -= len(v.Data)
		body, err := d.joined(ctx, s, name, bytes)
		switch {
		case err == nil:
			s.Values[name] = keyspace.Value{Data: body, Version: v.Version}
		case before.Name != "":
			s.Values[name] = keyspace.Value{Data: []byte(before.Body), Version: before.Version}
		default:
			delete(s.Values, name)
		}
		if err != nil {
			s.Unread = append(s.Unread, name)
			s.Fault = errors.Join(s.Fault, fmt.Errorf("cluster: %s %s: %w", d.kind, name, err))
		}
		bytes += len(s.Values[name].Data)
	}
	return nil
}

// joined reads the body of a document that is in parts. It returns an error if there is no
// room for it beside the other documents, which take beside bytes.
func (d *Kind) joined(ctx context.Context, s *keyspace.Snapshot, name string, beside int) ([]byte, error) {
	v := s.Values[name]
	p, parted := parseParts(string(v.Data))
	if !parted {
		return nil, fmt.Errorf("%d bytes in one piece are more than %d", len(v.Data), keyspace.MaxDocumentBytes)
	}
	if err := s.Fits(beside + p.bytes); err != nil {
		return nil, err
	}
	return d.readParts(ctx, name, p)
}

// readParts reads the parts of a document, and checks their size and checksum against p.
func (d *Kind) readParts(ctx context.Context, name string, p parts) ([]byte, error) {
	var body []byte
	for i := range p.count {
		call, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
		got, err := d.c.Etcd().Get(call, d.partKey(name, p, i))
		cancel()
		if err != nil {
			return nil, err
		}
		if len(got.Kvs) == 0 {
			return nil, fmt.Errorf("part %d of %d is not there", i+1, p.count)
		}
		if len(body)+len(got.Kvs[0].Value) > p.bytes {
			return nil, fmt.Errorf("part %d of %d is larger than it says", i+1, p.count)
		}
		body = append(body, got.Kvs[0].Value...)
	}
	if len(body) != p.bytes || Checksum(body) != p.sum {
		return nil, fmt.Errorf("its %d parts have another checksum than it says", p.count)
	}
	return body, nil
}

// HoldsBody reports whether data, the value that etcd has of a document, stands for a body:
// it is the body itself, or the line of parts with the body's checksum.
func HoldsBody(data []byte, body string) bool {
	if p, parted := parseParts(string(data)); parted {
		return p.sum == Checksum([]byte(body))
	}
	return string(data) == body
}
