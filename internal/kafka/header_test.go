package kafka_test

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

func TestCheckCRC(t *testing.T) {
	// The check value of CRC-32C: "123456789" is e3069283.
	crc := kafka.CRC([]byte("123456789"))
	if string(crc) != "\xe3\x06\x92\x83" {
		t.Fatalf("CRC32C of 123456789 = %x, want e3069283", crc)
	}
	kafkatest.Must(t, kafka.CheckCRC(crc, []byte("123456789")))
	for name, bad := range map[string][]byte{"missing": nil, "short": crc[:3], "long": append(crc, 0), "of another value": {0, 0, 0, 0}} {
		if err := kafka.CheckCRC(bad, []byte("123456789")); !errors.Is(err, kafka.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

func FuzzParseSource(f *testing.F) {
	for _, s := range []string{"posts/3/1234", "a.b-c_d/0/0", "", "/1/2", "posts/3", "posts/-1/2", "posts/1/9223372036854775808", "a/1/2/3"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		src, err := kafka.ParseSource(b)
		if err != nil {
			return
		}
		again, err := kafka.ParseSource(src.Append(nil))
		if err != nil || again != src {
			t.Errorf("%q reads as %v, which reads as %v, %v", b, src, again, err)
		}
	})
}
