package timeline

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

var (
	chained = millrace.Timeline{Entity: "a", Type: "post"}
	single  = millrace.Timeline{Entity: "b", Type: "post"}
)

func rec(id string, at millrace.Time) millrace.Record {
	return millrace.Record{ID: millrace.RecordID(id), Time: at, Body: []byte("body of " + id)}
}

// encode makes a blob of a timeline.
func encode(name millrace.Timeline, recs ...millrace.Record) *blob.Blob {
	sum := uint64(0)
	for i := range recs {
		sum += blob.RecordDigest(blob.TimelineDigest(name), &recs[i])
	}
	return blob.Encode(recs, sum)
}

// stored is the rows of a timeline of a head (f e d) before blobs m_4 (c b) and m_2 (a), of which
// b and c, and c and d, are of one time; and of one that has only a head (c b).
func stored() map[string][]byte {
	all := map[string][]byte{}
	prefix := Prefix(7, chained)
	old, mid := encode(chained, rec("a", 1)), encode(chained, rec("c", 5), rec("b", 5))
	head := encode(chained, rec("d", 6), rec("e", 7), rec("f", 8))
	head.SetHasChain(true)
	chain := blob.Chain{Next: 5, Links: []blob.Link{blob.LinkOf(2, old), blob.LinkOf(4, mid)}}
	all[string(OlderKey(prefix, 2))] = old.Buf
	all[string(OlderKey(prefix, 4))] = mid.Buf
	all[string(HeadKey(prefix))] = head.Buf
	all[string(ChainKey(prefix))] = chain.Encode(nil)
	var seen blob.Filter
	for id, at := range map[millrace.RecordID]millrace.Time{"a": 1, "b": 5, "c": 5} {
		seen.Add(id)
		all[string(idKey(prefix, id))] = IDRow{At: at}.encode()
	}
	all[string(filterKey(prefix))] = seen.Encode()
	all[string(HeadKey(Prefix(7, single)))] = encode(single, rec("b", 1), rec("c", 1<<40)).Buf
	return all
}

func key(k func([]byte) []byte) string { return string(k(Prefix(7, chained))) }

func older(suffix uint32) string { return string(OlderKey(Prefix(7, chained), suffix)) }

func idOf(id millrace.RecordID) string { return string(idKey(Prefix(7, chained), id)) }

// Whatever a row says that the others do not, or that is not so, a check finds.
func TestACheckFindsWhatIsWrong(t *testing.T) {
	chain := func(change func(*blob.Chain)) func(map[string][]byte) {
		return func(all map[string][]byte) {
			c, err := blob.DecodeChain(all[key(ChainKey)])
			if err != nil {
				t.Fatal(err)
			}
			change(c)
			all[key(ChainKey)] = c.Encode(nil)
		}
	}
	// put puts another blob in the place of that of the i-th link, and says so in the chain.
	put := func(i int, recs ...millrace.Record) func(map[string][]byte) {
		return func(all map[string][]byte) {
			b := encode(chained, recs...)
			chain(func(c *blob.Chain) {
				l := blob.LinkOf(c.Links[i].Suffix, b)
				all[older(l.Suffix)], c.Links[i] = b.Buf, l
			})(all)
		}
	}
	head := func(chain bool, recs ...millrace.Record) func(map[string][]byte) {
		return func(all map[string][]byte) {
			b := encode(chained, recs...)
			b.SetHasChain(chain)
			all[key(HeadKey)] = b.Buf
		}
	}
	without := func(k string) func(map[string][]byte) {
		return func(all map[string][]byte) {
			if _, ok := all[k]; !ok {
				t.Fatalf("%x is not there", k)
			}
			delete(all, k)
		}
	}
	with := func(k string, v []byte) func(map[string][]byte) {
		return func(all map[string][]byte) { all[k] = v }
	}
	edit := func(k string, at int, by byte) func(map[string][]byte) {
		return func(all map[string][]byte) { all[k][at] += by }
	}
	ofSingle := func(k func([]byte) []byte) string { return string(k(Prefix(7, single))) }
	var few blob.Filter
	few.Add("a")
	few.Add("b")
	d, e, f := rec("d", 6), rec("e", 7), rec("f", 8)
	for what, c := range map[string]struct {
		change func(map[string][]byte)
		want   error
		says   string
	}{
		"no head":                  {without(key(HeadKey)), ErrState, "head and chain"},
		"no chain":                 {without(key(ChainKey)), ErrState, "head and chain"},
		"head without a chain":     {head(false, d, e, f), ErrState, "head and chain"},
		"chain without a mark":     {with(ofSingle(ChainKey), (&blob.Chain{}).Encode(nil)), ErrState, "head and chain"},
		"older of a single":        {with(ofSingle(func(p []byte) []byte { return OlderKey(p, 0) }), encode(single, rec("a", 0)).Buf), ErrState, "orphans"},
		"filter of a single":       {with(ofSingle(filterKey), few.Encode()), ErrState, "orphans"},
		"single without records":   {with(ofSingle(HeadKey), encode(single).Buf), ErrState, "orphans"},
		"an older one missing":     {without(older(2)), ErrState, "1 older blobs, 2 in the chain"},
		"an older one too many":    {with(older(3), encode(chained, rec("x", 2)).Buf), ErrState, "3 older blobs"},
		"another older one":        {func(all map[string][]byte) { all[older(3)] = all[older(2)]; delete(all, older(2)) }, ErrState, "metadata of m_2"},
		"empty head":               {head(true), ErrState, "empty head"},
		"count of a link":          {chain(func(c *blob.Chain) { c.Links[1].Count++ }), ErrState, "metadata of m_4"},
		"oldest of a link":         {chain(func(c *blob.Chain) { c.Links[0].Oldest-- }), ErrState, "metadata of m_2"},
		"newest of a link":         {chain(func(c *blob.Chain) { c.Links[0].Newest++ }), ErrState, "metadata of m_2"},
		"digest of a link":         {chain(func(c *blob.Chain) { c.Links[0].Digest++ }), ErrState, "metadata of m_2"},
		"overlap by id":            {func(all map[string][]byte) { put(0, rec("a", 5))(all); all[idOf("a")] = IDRow{At: 5}.encode() }, ErrState, "m_2 is not older"},
		"overlap with the head":    {head(true, rec("d", 5), e, f), ErrState, "m_4 is not older"},
		"overlap in time":          {head(true, rec("d", 4), e, f), ErrState, "m_4 is not older"},
		"id row missing":           {without(idOf("b")), ErrState, "3 records outside the head, 2 of"},
		"id row of another time":   {with(idOf("b"), IDRow{At: 4}.encode()), blob.ErrRow, "says 4, it is at 5"},
		"id row cut short":         {with(idOf("b"), nil), blob.ErrRow, ""},
		"stale id row":             {with(idOf("x"), nil), blob.ErrRow, ""},
		"id row too long":          {with(idOf("b"), []byte{2, 2}), blob.ErrRow, ""},
		"no filter":                {without(key(filterKey)), blob.ErrFilter, "is not in it"},
		"an id is not in it":       {with(key(filterKey), few.Encode()), blob.ErrFilter, `"c" is not in it`},
		"no filter of nothing":     {func(all map[string][]byte) { empty(all); all[key(filterKey)] = []byte{9} }, blob.ErrFilter, ""},
		"no filter is it":          {edit(key(filterKey), 0, 1), blob.ErrFilter, ""},
		"twice, in older ones":     {put(1, rec("c", 5), rec("a", 5)), ErrState, `"a" twice`},
		"twice, also in the head":  {head(true, d, e, rec("a", 8)), ErrState, `"a" twice`},
		"older one as a head":      {edit(older(2), 1, 1), ErrState, "m_2: "},
		"older one without any":    {with(older(2), encode(chained).Buf), ErrState, "m_2: "},
		"digest of the head":       {edit(key(HeadKey), 6, 1), ErrDigest, "head: "},
		"digest of an older one":   {edit(older(4), 6, 1), ErrDigest, "m_4: "},
		"head is no blob":          {edit(key(HeadKey), 0, 1), blob.Err, "head: "},
		"record of the head":       {func(all map[string][]byte) { all[key(HeadKey)][len(all[key(HeadKey)])-1]++ }, ErrDigest, "head: "},
		"flags of a record":        {edit(older(2), 16+8+1, 0x10), blob.Err, "m_2: "},
		"chain is none":            {edit(key(ChainKey), 0, 1), blob.ErrChain, ""},
		"no such part":             {with(key(func(p []byte) []byte { return append(p, PartID+1) }), nil), blob.ErrKey, ""},
		"a suffix of three bytes":  {with(older(9)[:len(older(9))-1], nil), blob.ErrKey, ""},
		"more behind the head":     {with(key(HeadKey)+"x", nil), blob.ErrKey, ""},
		"no part":                  {with(key(slices.Clone[[]byte]), nil), blob.ErrKey, ""},
		"no type":                  {with(string([]byte{0, 7, Kind, 1, 'c'}), nil), blob.ErrKey, ""},
		"no entity":                {with(string([]byte{0, 7, Kind, 9, 'c'}), nil), blob.ErrKey, ""},
		"another kind":             {with(string([]byte{0, 7, Kind - 1, 1, 'c', 1, 'c', 0}), nil), blob.ErrKey, ""},
		"the last timeline of all": {with(ofSingle(HeadKey), encode(chained, rec("b", 1)).Buf), ErrDigest, "head: "},
	} {
		all := stored()
		c.change(all)
		var n tally
		if err := check(all, &n); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %v: %s", what, err, c.want, c.says)
		}
		if slices.Contains(n.names, millrace.Timeline{}) {
			t.Errorf("%s: it meets %v", what, n.names)
		}
	}
	for what, c := range map[string]struct {
		change func(map[string][]byte)
		want   tally
	}{
		"as it is":               {func(map[string][]byte) {}, tally{records: 8, ended: 2, with: 2}},
		"row of a dropped one":   {with(idOf("x"), IDRow{At: 0}.encode()), tally{records: 8, stale: 1, ended: 2, with: 2}},
		"row of one in head":     {with(idOf("e"), IDRow{At: 7}.encode()), tally{records: 8, stale: 1, ended: 2, with: 2}},
		"nothing but a floor":    {func(all map[string][]byte) { empty(all) }, tally{records: 2, ended: 2, with: 1}},
		"next to the head":       {head(true, rec("aa", 5), e, f), tally{records: 8, ended: 2, with: 2}},
		"ids longer than room":   {func(all map[string][]byte) { many(all, 600, 500) }, tally{records: 609, ended: 3, with: 3}},
		"more ids than it keeps": {func(all map[string][]byte) { many(all, 1025, 3) }, tally{records: 1034, ended: 3, with: 3}},
	} {
		all := stored()
		c.change(all)
		var n tally
		if err := check(all, &n); err != nil || n.records != c.want.records || n.stale != c.want.stale || n.ended != c.want.ended || n.with != c.want.with {
			t.Errorf("%s: %+v, %v; want %+v", what, n, err, c.want)
		}
	}
	refused := errors.New("refused")
	if err := check(stored(), &tally{refuse: refused}); err != refused {
		t.Errorf("it goes on although it is told to end: %v", err)
	}
	n := tally{}
	if err := check(stored(), &n); err != nil || !slices.Equal(n.names, []millrace.Timeline{chained, single}) {
		t.Errorf("it meets %v, %v", n.names, err)
	}
	if err := check(nil, &n); err != nil {
		t.Errorf("of nothing: %v", err)
	}
}

// What a timeline needs and is not there, or is something else, is an error of every call that
// needs it.
func TestATimelineWithoutItsRows(t *testing.T) {
	a, z := rec("a", 1), rec("z", 2)
	bad := func(recs ...millrace.Record) []byte { // whose first record has no body
		b := encode(chained, recs...)
		b.Buf[16+8+1] |= 0x10
		b.SetHasChain(recs[0].ID == "d")
		return b.Buf
	}
	at := func(t *Timeline, id millrace.RecordID, do func(Place) error) error {
		p, ok, err := t.Find(id)
		if err != nil || !ok {
			return fmt.Errorf("%s is not there: %w", id, err)
		}
		return do(p)
	}
	insert := func(t *Timeline, id string, when millrace.Time) error {
		r := rec(id, when)
		_, err := t.Insert(&r)
		return err
	}
	calls := []struct {
		name string
		do   func(t *Timeline) error
	}{
		{"find", func(t *Timeline) error {
			_, _, a := t.Find("a")
			_, _, c := t.Find("c")
			_, _, d := t.Find("d")
			return cmp.Or(a, c, d)
		}},
		{"insert", func(t *Timeline) error { return insert(t, "new", 1) }},
		{"append", func(t *Timeline) error { t.max = 1; return insert(t, "new", 9) }},
		{"into the head", func(t *Timeline) error { return insert(t, "new", 7) }},
		{"replace", func(t *Timeline) error {
			return at(t, "e", func(p Place) error { r := rec("e", 7); return t.Replace(p, &r) })
		}},
		{"remove", func(t *Timeline) error { return at(t, "e", t.Remove) }},
		{"remove older", func(t *Timeline) error { return at(t, "b", t.Remove) }},
		{"promote", func(t *Timeline) error {
			return errors.Join(at(t, "e", t.Remove), at(t, "f", t.Remove), at(t, "d", t.Remove))
		}},
		{"dropped", func(t *Timeline) error {
			return at(t, "f", func(p Place) error { _, err := Keeper{Count: 1}.Dropped(t, p); return err })
		}},
		{"excludes", func(t *Timeline) error { r := rec("new", 5); _, err := Keeper{Count: 4}.Excludes(t, &r); return err }},
		{"floor", func(t *Timeline) error { return Keeper{Count: 6}.SetFloor(t) }},
		{"sweep", func(t *Timeline) error { _, err := Keeper{Horizon: 3}.Sweep(t, decoding{}); return err }},
		{"erase", func(t *Timeline) error {
			_, err := Keeper{Horizon: 99}.Sweep(t, decoding{})
			return err
		}},
	}
	for what, c := range map[string]struct {
		k    string
		v    []byte // instead; nil: nothing
		want error
		says string // the calls that say so
	}{
		"no chain":              {key(ChainKey), nil, ErrState, "find, insert, append, remove, remove older, promote, dropped, excludes, floor, sweep, erase"},
		"a bad chain":           {key(ChainKey), []byte{0}, blob.ErrChain, "find, insert, append, remove, remove older, promote, dropped, excludes, floor, sweep, erase"},
		"no newer one of them":  {older(4), nil, ErrState, "find, remove older, promote, excludes, floor, erase"},
		"no older blob":         {older(2), nil, ErrState, "find, insert, floor, sweep, erase"},
		"a bad older blob":      {older(2), []byte{0}, blob.Err, "find, insert, floor, sweep, erase"},
		"of another count":      {older(2), encode(chained, a, z).Buf, ErrState, "find, insert, floor, sweep, erase"},
		"of another time":       {older(4), encode(chained, rec("c", 4), rec("b", 5)).Buf, ErrState, "find"},
		"a bad filter":          {key(filterKey), []byte{0}, blob.ErrFilter, "find, insert, append, remove older"},
		"a bad id row":          {idOf("a"), nil, blob.ErrRow, "find, sweep, erase"},
		"a bad record":          {older(2), bad(a), blob.Err, "find, insert, floor, sweep, erase"},
		"a bad record at once":  {older(4), bad(rec("c", 5), rec("b", 5)), blob.Err, "find, remove older, promote, excludes, erase"},
		"a bad record in front": {key(HeadKey), bad(rec("d", 6), rec("e", 7), rec("f", 8)), blob.Err, "find, append, into the head, replace, remove, promote, erase"},
	} {
		var said []string
		for _, call := range calls {
			src := rows{all: stored()}
			if src.all[c.k] = c.v; c.v == nil && c.want != blob.ErrRow {
				delete(src.all, c.k)
			}
			tl, err := Open(&src, 7, chained, 200)
			if err != nil {
				t.Fatal(err)
			}
			if err := call.do(tl); errors.Is(err, c.want) {
				said = append(said, call.name)
			} else if err != nil {
				t.Errorf("%s: %s: %v", what, call.name, err)
			}
		}
		if got := strings.Join(said, ", "); got != c.says {
			t.Errorf("%s is said by %s; want %s", what, got, c.says)
		}
	}
	src := rows{all: stored()}
	src.all[key(HeadKey)][0]++
	if _, err := Open(&src, 7, chained, 200); !errors.Is(err, blob.Err) {
		t.Errorf("a bad head: %v", err)
	}
}

// decoding is an expiry that reads the records.
type decoding struct{}

func (decoding) ExpireBlob(b *blob.Blob) error { _, err := b.DecodeAll(nil); return err }

// empty leaves nothing of the first timeline but its chain, with a floor.
func empty(all map[string][]byte) {
	maps.DeleteFunc(all, func(k string, _ []byte) bool { return strings.HasPrefix(k, string(Prefix(7, chained))) })
	b := encode(chained)
	b.SetHasChain(true)
	all[key(HeadKey)], all[key(ChainKey)] = b.Buf, (&blob.Chain{Next: 5, Floor: &blob.Floor{Time: 9, ID: "x"}}).Encode(nil)
}

// many adds a timeline, before the others, with so many older records, whose ids have so many
// bytes and more, and which the others have in part.
func many(all map[string][]byte, n, bytes int) {
	name := millrace.Timeline{Entity: "A", Type: "post"}
	prefix := Prefix(7, name)
	var recs []millrace.Record
	var seen blob.Filter
	for i := range n {
		id := fmt.Sprint(strings.Repeat("x", bytes), i)
		if i < 3 {
			id = string(rune('a' + i))
		}
		recs = append(recs, rec(id, millrace.Time(i)))
		seen.Add(recs[i].ID)
		all[string(idKey(prefix, recs[i].ID))] = IDRow{At: recs[i].Time}.encode()
	}
	var chain blob.Chain
	for from := 0; from < n; from += 100 {
		b := encode(name, recs[from:min(n, from+100)]...)
		all[string(OlderKey(prefix, chain.Next))] = b.Buf
		chain.Links = append(chain.Links, blob.LinkOf(chain.Next, b))
		chain.Next++
	}
	b := encode(name, rec("head", 1<<40))
	b.SetHasChain(true)
	all[string(HeadKey(prefix))] = b.Buf
	all[string(ChainKey(prefix))] = chain.Encode(nil)
	all[string(filterKey(prefix))] = seen.Encode()
}

// The horizon itself is kept, and so is a floor at it.
func TestTheHorizonIsKept(t *testing.T) {
	for _, horizon := range []millrace.Time{8, 9} {
		k, kept := Keeper{Horizon: horizon}, horizon == 8
		src := &rows{}
		open := func() *Timeline {
			src.all = stored()
			tl, err := Open(src, 7, chained, 200)
			if err != nil {
				t.Fatal(err)
			}
			return tl
		}
		f, tl := rec("new", 8), open()
		if out, err := k.Excludes(tl, &f); err != nil || out == kept {
			t.Errorf("from %d on, a record of 8 is out: %t, %v", horizon, out, err)
		}
		at, ok, err := tl.Find("f")
		if gone, e := k.Dropped(tl, at); err != nil || !ok || e != nil || gone == kept {
			t.Errorf("from %d on, the record of 8 is gone: %t, %v, %v", horizon, gone, err, e)
		}
		if _, err := k.Sweep(tl, decoding{}); err != nil || tl.gone == kept {
			t.Errorf("from %d on, a timeline whose last is of 8 is gone: %t, %v", horizon, tl.gone, err)
		}
		if err := src.write(tl); err != nil || !kept && len(src.all) != 1 { // of the other timeline
			t.Errorf("%d rows are left of a timeline that is gone: %v", len(src.all), err)
		}
		k.Count, tl = 1, open()
		if err := k.SetFloor(tl); err != nil || (tl.Chain.Floor != nil) != kept {
			t.Errorf("from %d on, the floor is %+v, %v", horizon, tl.Chain.Floor, err)
		}
		all := stored()
		empty(all)
		c := blob.Chain{Floor: &blob.Floor{Time: 8, ID: "x"}}
		all[key(ChainKey)] = c.Encode(nil)
		tl, err = Open(&rows{all: all}, 7, chained, 200)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Sweep(tl, decoding{}); err != nil || tl.gone == kept {
			t.Errorf("from %d on, a floor of 8 is gone: %t, %v", horizon, tl.gone, err)
		}
	}
}

// A new id costs no read once the filter is there. A timeline that has no records any more has no
// rows.
func TestWhatIsNotThereCostsNothing(t *testing.T) {
	src := &rows{all: stored()}
	tl, err := Open(src, 7, chained, 200)
	if err == nil {
		err = tl.LoadFilter()
	}
	if err != nil {
		t.Fatal(err)
	}
	src.reads = 0
	for i := range 100 {
		if _, ok, err := tl.Find(millrace.RecordID(fmt.Sprint("new", i))); ok || err != nil {
			t.Fatal(err)
		}
	}
	if src.reads > 10 {
		t.Errorf("%d reads for 100 new ids", src.reads)
	}
	src = &rows{all: map[string][]byte{}}
	if tl, err = Open(src, 7, single, 200); err != nil {
		t.Fatal(err)
	}
	r := rec("a", 1)
	if _, err := tl.Insert(&r); err != nil {
		t.Fatal(err)
	}
	if err := src.write(tl); err != nil || len(src.all) != 1 {
		t.Errorf("%d rows of one record, %v", len(src.all), err)
	}
	at, _, err := tl.Find("a")
	if err = errors.Join(err, tl.Remove(at), src.write(tl)); err != nil || len(src.all) != 0 {
		t.Errorf("%d rows of none, %v", len(src.all), err)
	}
}
