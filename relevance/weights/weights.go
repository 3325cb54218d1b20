// Package weights writes the weights of a model that a variant of an experiment sets, and
// reads them. Equal weights always give the same text, so that the text's checksum
// identifies them.
package weights

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace"
)

// MaxBytes bounds the text of weights. A hundred of the longest names fit.
const MaxBytes = 128 << 10

// Form returns weights by name as JSON without spaces, the names ascending; "" for none.
// All must be finite.
func Form(set map[string]float64) string {
	if len(set) == 0 {
		return ""
	}
	b, err := json.Marshal(set)
	if err != nil {
		panic(fmt.Sprintf("weights: %v", err)) // weights that are not finite were refused when the definition was read
	}
	return string(b)
}

// Sum returns the checksum of a form: SHA-256 in hexadecimal digits; "" of "".
func Sum(form string) string {
	if form == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(form))
	return hex.EncodeToString(sum[:])
}

// Read reads what Form writes, and checks that sum is its checksum. The error is a
// [millrace.Error] of the field weights. It refuses any text that Form would not write:
// the same weights would have another checksum in that text.
func Read(form, sum string) (map[string]float64, error) {
	wrong := func(format string, args ...any) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "weights", Detail: fmt.Sprintf(format, args...), WayOut: "send what package weights writes, with its checksum"}
	}
	if len(form) > MaxBytes {
		return nil, wrong("%d bytes, more than %d", len(form), MaxBytes)
	}
	if Sum(form) != sum {
		return nil, wrong("they have the checksum %.12s, and not %.12s", Sum(form), sum)
	}
	var set map[string]float64
	d := json.NewDecoder(bytes.NewReader([]byte(form)))
	if err := d.Decode(&set); err != nil {
		return nil, wrong("they cannot be read: %v", err)
	}
	if Form(set) != form {
		return nil, wrong("%.100q is not how they are written", form)
	}
	return set, nil
}
