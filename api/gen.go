// Package api holds the protocol definitions. The folders below it hold the Go that
// `make proto` generates from them.
package api
