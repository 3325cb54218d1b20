// Package display writes what commands show, as text or JSON: tables, progress, and texts
// that others have written, without characters that would steer a terminal.
package display

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
)

// Form is the form in which a command writes what it shows. It is the value of the flag
// -o, so that a word that is no form is refused before the command begins. The zero
// value is text.
type Form struct {
	Word  string   // the form, one of words; "": text
	words []string // those that the flag takes
}

// Flag adds -o to a command, with into as its value. It takes words, or text and json if
// there are none; the first is the default.
func Flag(c *cobra.Command, into *Form, words ...string) {
	if len(words) == 0 {
		words = []string{"text", "json"}
	}
	*into = Form{words[0], words}
	c.Flags().VarP(into, "output", "o", into.Choices())
}

// Choices returns the words that -o takes, such as "text or json".
func (f *Form) Choices() string { return strings.Join(f.words, " or ") }

// String implements pflag.Value.
func (f *Form) String() string { return f.Word }

// Type implements pflag.Value.
func (f *Form) Type() string { return "string" }

// Set implements pflag.Value.
func (f *Form) Set(word string) error {
	if !slices.Contains(f.words, word) {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "output", Detail: fmt.Sprintf("%.40q is no form of output", word), WayOut: "say " + f.Choices()}
	}
	f.Word = word
	return nil
}

// Looking makes c a command that runs run, with the form that -o gives.
func Looking(c *cobra.Command, run func(c *cobra.Command, output *Form, args []string) error) *cobra.Command {
	var output Form
	Flag(c, &output)
	c.RunE = func(c *cobra.Command, args []string) error { return run(c, &output, args) }
	return c
}

// JSON reports whether the form is JSON.
func (f *Form) JSON() bool { return f.Word == "json" }

// Write writes v as a line of JSON if the form is JSON, and else calls text.
func (f *Form) Write(w io.Writer, v any, text func(io.Writer) error) error {
	if f.JSON() {
		return WriteJSON(w, v)
	}
	return text(w)
}

// WriteJSON writes v as a line of JSON.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // filters have < and >
	return e.Encode(v)
}

// List returns all, or an empty slice for nil, so that JSON has [] and not null.
func List[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// Known returns a pointer to x, or nil for NaN and the infinities, which JSON cannot
// write: it has null instead.
func Known(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// Message is a protobuf message that encodes to JSON with the field names of its .proto,
// zeros included.
type Message struct{ proto.Message }

// MarshalJSON implements json.Marshaler.
func (m Message) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m.Message)
}

// Object returns a document in YAML as a value that encodes to JSON. If it is no YAML, it
// returns the text.
func Object(text []byte) any {
	n, err := document.Parse(text)
	if err != nil {
		return string(text)
	}
	return n.Value()
}
