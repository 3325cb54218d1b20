// Package models is the generated Go of model specs: one file a spec, each
// registering its functions by the shape of the plan they compute.
package models
