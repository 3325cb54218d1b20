package broker

import (
	"maps"
	"testing"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/offsets"
)

// A receipt is compact unless its full form is asked for; both say the same, on
// whichever page.
func TestReceiptsHaveTwoForms(t *testing.T) {
	w := newWorld(t, 2, 1)
	for i := range 9 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b := w.broker()
	var whole map[millrace.Partition]offsets.Next
	token, digest := "", ""
	for _, form := range []string{"full", "", "compact"} {
		req := recentRequest(9)
		req.Receipt, req.Limit, req.PageToken = form, new(int64(1)), token
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		r := resp.Receipt
		for _, a := range r.Applied {
			if full := form == "full"; full != (len(a.Partitions) > 0) || full != (len(a.Packed) == 0) {
				t.Errorf("%q: %v", form, a)
			}
		}
		got, err := offsets.Read(r)
		if whole == nil {
			whole, digest = got, r.AppliedDigest
		}
		var sum offsets.Digest
		for p, next := range got {
			sum.Add(offsets.Part{Partition: p, Next: next})
		}
		if r.AppliedDigest != sum.String() {
			t.Errorf("%q: the digest is %s, of what it says %s", form, r.AppliedDigest, sum)
		}
		if err != nil || len(got) == 0 || !maps.Equal(got, whole) || r.AppliedDigest != digest || len(digest) != 16 {
			t.Errorf("%q: %v, %s, %v; want %v, %s", form, got, r.AppliedDigest, err, whole, digest)
		}
		token = resp.NextPageToken
	}
	req := recentRequest(1)
	req.Receipt = "whole"
	_, err := b.GetFeed(t.Context(), req)
	if e := refusal(t, err); e.Reason != millrace.ReasonInvalid || e.Field != "receipt" || e.WayOut != "ask for compact or full" {
		t.Errorf("%+v", e)
	}
	why, err := b.Why(t.Context(), &feedv1.WhyRequest{Request: recentRequest(1), Record: "r"})
	if err != nil || why.Receipt.AppliedDigest == "" || len(why.Receipt.Applied[0].Packed) == 0 {
		t.Errorf("%v, %v", why, err)
	}
}
