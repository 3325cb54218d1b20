//go:build !linux

package figure

// Processor is the name of the processor, which is not told here.
func Processor() string { return "" }
