// Package api holds the protocol definitions; the Go generated from them is
// in the folders below. `make proto` writes it again.
package api
