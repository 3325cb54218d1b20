// Package every is a generated decoder for tests: go test ./codegen -rewrite.
package every
