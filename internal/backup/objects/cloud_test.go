package objects

import (
	"errors"
	"testing"
)

// A store that does not know the access key says so by 404, as of a bucket that
// is not there.
func TestAnUnknownAccessKey(t *testing.T) {
	for text, want := range map[string]bool{
		"StatusCode: 404, api error XAdminUserNotFound: no such user": true,
		"StatusCode: 403, InvalidAccessKeyId":                         true,
		"StatusCode: 404, NoSuchBucket":                               false,
	} {
		if unknownKey(errors.New(text)) != want {
			t.Error(text)
		}
	}
}
