//go:build !linux

package figure

// Processor returns "": the processor's name is known on Linux alone.
func Processor() string { return "" }
