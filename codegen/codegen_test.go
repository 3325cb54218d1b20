package codegen

import "testing"

// A file must be one that go build takes on every platform.
func TestFileNames(t *testing.T) {
	for model, want := range map[string]string{
		"home":      "home.go",
		"home-v2":   "home_v2_model.go",
		"feed-test": "feed_test_model.go", // not a test
		"ads_linux": "ads_linux_model.go", // not for one system
	} {
		if got := fileName(model); got != want {
			t.Errorf("%s: %s, want %s", model, got, want)
		}
	}
}
