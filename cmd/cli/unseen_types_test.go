package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// Types that no record has are told where a feed or a variant names them, and by
// doctor, until there is such a record or the experiment has stopped.
func TestTypesThatNoRecordHasAreTold(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	write := func(name, text string) string {
		file := filepath.Join(o.dir, name)
		o.must(os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	feed := "feed define " + write("news.yaml", "name: news\nmodel: recency\ntypes: [post, nosuch]\n")
	o.shows(feed, "!note") // before the first record
	o.load(`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`, `{"id":"b","author":"member:1","kind":"like","at":"2026-01-01T00:00:00Z"}`)
	doctor := "doctor --brokers " + o.Kafka + " --grpc " + o.GRPC
	const says = "no record has the type nosuch; there are like, post\n"
	const variant = "experiment fresher, draft: variant treatment sets types, and " + says
	o.shows(feed, "note: "+says)
	o.shows("experiment define "+write("a.yaml", strings.NewReplacer("[home]", "[news]", "limit: 30", "types: [post, nosuch]").Replace(clitest.Fresher)), "note: "+variant)
	clitest.WaitFor(o.ctx, t, "nodes tell that they are not behind", func() bool {
		_, err := o.run(doctor)
		return err == nil
	})
	o.shows(doctor, "warn  feeds are whole          feed news: "+says, "warn  experiments are whole    "+variant)
	o.shows("experiment list", variant)
	o.shows("experiment stop fresher", "!note")
	o.shows(doctor, "ok    experiments are whole")
	o.load(`{"id":"c","author":"member:1","kind":"nosuch","at":"2026-01-01T00:00:00Z"}`)
	o.shows(doctor, "ok    feeds are whole")
}
