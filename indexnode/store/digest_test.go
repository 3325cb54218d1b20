package store

import (
	"encoding/binary"
	"math/bits"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// What digests are, said a second time and with nothing of the store's: XXH64,
// seed 0, by its specification (https://github.com/Cyan4973/xxHash, doc), of
// words of 8 bytes, little-endian. The oracle adds up these.

const (
	prime1 = 0x9E3779B185EBCA87
	prime2 = 0xC2B2AE3D27D4EB4F
	prime3 = 0x165667B19E3779F9
	prime4 = 0x85EBCA77C2B2AE63
	prime5 = 0x27D4EB2F165667C5
)

func xxRound(acc, lane uint64) uint64 {
	return bits.RotateLeft64(acc+lane*prime2, 31) * prime1
}

func xxh64(b []byte) uint64 {
	le, size := binary.LittleEndian, uint64(len(b))
	acc := uint64(prime5)
	if len(b) >= 32 {
		p1, p2 := uint64(prime1), uint64(prime2)
		v := [4]uint64{p1 + p2, p2, 0, -p1}
		for ; len(b) >= 32; b = b[32:] {
			for i := range v {
				v[i] = xxRound(v[i], le.Uint64(b[8*i:]))
			}
		}
		acc = bits.RotateLeft64(v[0], 1) + bits.RotateLeft64(v[1], 7) + bits.RotateLeft64(v[2], 12) + bits.RotateLeft64(v[3], 18)
		for _, x := range v {
			acc = (acc^xxRound(0, x))*prime1 + prime4
		}
	}
	acc += size
	for ; len(b) >= 8; b = b[8:] {
		acc = bits.RotateLeft64(acc^xxRound(0, le.Uint64(b)), 27)*prime1 + prime4
	}
	if len(b) >= 4 {
		acc = bits.RotateLeft64(acc^uint64(le.Uint32(b))*prime1, 23)*prime2 + prime3
		b = b[4:]
	}
	for _, c := range b {
		acc = bits.RotateLeft64(acc^uint64(c)*prime5, 11) * prime1
	}
	acc = (acc ^ acc>>33) * prime2
	acc = (acc ^ acc>>29) * prime3
	return acc ^ acc>>32
}

func digestByDefinition(words ...uint64) uint64 {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return xxh64(b)
}

func recordByDefinition(t millrace.Timeline, r *millrace.Record) uint64 {
	var object, deleted uint64
	if r.Object != "" && string(r.Object) != string(r.ID) {
		object = xxh64([]byte(r.Object))
	}
	if r.Deleted {
		deleted = 1
	}
	timeline := xxh64([]byte(t.Entity)) ^ bits.RotateLeft64(xxh64([]byte(t.Type)), 1)
	return digestByDefinition(timeline, xxh64([]byte(r.ID)), uint64(r.Time), uint64(r.Version), object, deleted, uint64(r.Schema), xxh64(r.Body))
}

func featuresByDefinition(e millrace.Entity, f *Features) uint64 {
	return digestByDefinition(xxh64([]byte(e)), xxh64([]byte(f.Subject)), uint64(f.Version), uint64(f.Time), uint64(f.Schema), xxh64(f.Body))
}

// Digests are told by one binary to another and kept in backups: they are what
// they were. The numbers are of the reference implementation of XXH64.
func TestDigestsAreWhatTheyWere(t *testing.T) {
	long := make([]byte, 1000)
	for i := range long {
		long[i] = byte(i % 251)
	}
	for size, want := range map[int]uint64{
		0: 0xef46db3751d8e999, 1: 0xe934a84adb052768, 3: 0xe5c7bb4533bc65dd, 4: 0xffced8604453cc1e, 7: 0x14cc643f630c72d2,
		8: 0x884a173614b81b8d, 31: 0xc346d2b59b4d8ee1, 32: 0xcbf59c5116ff32b4, 33: 0x0c535d1acafb8ead, 100: 0x6ac1e58032166597,
	} {
		if got := xxh64(long[:size]); got != want {
			t.Errorf("XXH64 of %d bytes: %#x, want %#x", size, got, want)
		}
	}
	posts := millrace.Timeline{Entity: "member:1", Type: "post"}
	var sum Digest
	s := openMem(t, Options{})
	for i, c := range []struct {
		name millrace.Timeline
		r    millrace.Record
		want uint64
	}{
		{posts, millrace.Record{ID: "a", Time: 1000}, 0x7737ce774446ade3},
		{posts, millrace.Record{ID: "a", Time: 1000, Object: "a"}, 0x7737ce774446ade3},
		{posts, millrace.Record{ID: "b", Time: -5, Version: 7, Object: "urn:x", Schema: 0x1122334455667788, Body: []byte("body")}, 0x93021a65513be338},
		{posts, millrace.Record{ID: "b", Time: -5, Version: 7, Object: "urn:x", Schema: 0x1122334455667788, Deleted: true}, 0xef92aeefa85b1077},
		{millrace.Timeline{Entity: "schule:zürich"}, millrace.Record{ID: "c", Time: 1 << 50, Version: -1, Deleted: true, Schema: 1, Body: long}, 0x78cbcd9869952259},
	} {
		if got := recordByDefinition(c.name, &c.r); got != c.want {
			t.Errorf("record %d: %#x by definition, want %#x", i, got, c.want)
		}
		if got := blob.RecordDigest(blob.TimelineDigest(c.name), &c.r); got != c.want {
			t.Errorf("record %d: %#x, want %#x", i, got, c.want)
		}
		var b Batch
		b.Put(3, c.name, c.r)
		apply(t, s, &b)
		if i != 1 { // the same as the one before
			sum.Content += c.want
		}
		if i == 3 { // a tombstone in the place of the one before
			sum.Content -= 0x93021a65513be338
		}
	}
	for i, c := range []struct {
		e    millrace.Entity
		f    Features
		want uint64
	}{
		{"member:1", Features{Subject: "topics", Version: 3, Time: 99, Schema: 5, Body: []byte("xyz")}, 0x6f7910fc6dabff6d},
		{"member:2", Features{Version: -3, Time: -99, Schema: 0xffffffffffffffff, Body: long}, 0x3b2b326ac97438f4},
	} {
		if got := featuresByDefinition(c.e, &c.f); got != c.want {
			t.Errorf("features %d: %#x by definition, want %#x", i, got, c.want)
		}
		if got := featuresDigest(c.e, &c.f); got != c.want {
			t.Errorf("features %d: %#x, want %#x", i, got, c.want)
		}
		var b Batch
		b.PutFeatures(3, c.e, c.f)
		apply(t, s, &b)
		sum.Features += c.want
	}
	if got := s.Digest(3); got != sum {
		t.Errorf("a store with all of them has %x, want %x", got, sum)
	}
}
