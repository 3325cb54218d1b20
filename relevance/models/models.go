// Package models has the Go that is generated from the built-in model specs, a file for
// each. Its init functions register the scoring functions with package compute.
package models
