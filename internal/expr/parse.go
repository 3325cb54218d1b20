package expr

import "errors"

// Parse parses, checks and lowers a source. The error is an *[Error] with
// every fault of the source at once. Its time and memory are bounded whatever
// the source.
func Parse(src string, env Env) (*Node, error) {
	return nil, errors.New("expr: parsing is not built yet")
}
