// Package ahead asks the processor for memory that will soon be read. It
// changes nothing but time, and where there is no assembly it does nothing.
package ahead
