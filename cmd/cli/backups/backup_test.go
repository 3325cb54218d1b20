package backups

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/backup"
)

// What is extra in a bucket is counted, and does not hide what is damaged.
func TestVerifyTellsTheVerdict(t *testing.T) {
	v := &verified{Whole: &backup.Restorable{}, bad: 1}
	for range 1000 {
		v.Damage = append(v.Damage, &backup.Damage{Object: "files/x", Kind: backup.Extra})
	}
	v.Damage = append(v.Damage, &backup.Damage{Object: "files/y", Kind: backup.Missing, Detail: "it is gone"})
	var out strings.Builder
	if err := v.write(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 4 || !strings.Contains(got, "files/y") || !strings.Contains(got, "1000 objects are extra") {
		t.Errorf("printed\n%s", got)
	}
}
