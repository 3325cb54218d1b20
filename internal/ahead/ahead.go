// Package ahead asks the processor for memory that will soon be read, so that the read
// waits less. It has no other effect. On processors without its assembly it does nothing.
package ahead
