package admin

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// It is told when the certificate in use ends: of several with one key that which
// ends first, and after a change the new one.
func TestCertificatesTellTheirEnds(t *testing.T) {
	a := authority.New(t)
	soon, late := time.Now().Add(time.Hour), time.Now().Add(24*time.Hour)
	var all []any
	for name, end := range map[string]time.Time{"one": late, "two": soon} {
		f, err := secure.Open(a.IssueUntil(name, end), "lives", nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	for _, name := range []string{"two", "one"} { // that of two is replaced
		if name == "one" {
			a.IssueUntil("two", late.Add(time.Hour))
			soon = late
		}
		want := fmt.Sprintf(`# HELP millrace_certificate_ends_seconds Until when the certificate that is shown is valid, in seconds since 1970, by the key of the configuration that names it.
# TYPE millrace_certificate_ends_seconds gauge
millrace_certificate_ends_seconds{field="lives"} %d
`, soon.Unix())
		if err := testutil.CollectAndCompare(Certificates(), strings.NewReader(want), "millrace_certificate_ends_seconds"); err != nil {
			t.Error(err)
		}
	}
	runtime.KeepAlive(all)
}
