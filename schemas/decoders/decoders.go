// Package decoders holds the generated decoders of the shipped schemas. Those
// of a team's own schemas may be added by millrace generate --decoder.
package decoders
