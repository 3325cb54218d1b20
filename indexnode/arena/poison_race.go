//go:build race

package arena

// poison has freed blocks filled with poisonByte, so that a test that still reads one
// fails.
const poison = true
