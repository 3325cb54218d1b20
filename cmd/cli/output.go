package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
)

// form is the form in which a command writes what it shows. It is the value of
// -o, so that another word is refused before the command begins. The zero value
// is text.
type form struct {
	word  string
	words []string // that there are
}

// outputFlag adds -o. The words are text and json unless others are named; the
// first is the default.
func outputFlag(c *cobra.Command, into *form, words ...string) {
	if len(words) == 0 {
		words = []string{"text", "json"}
	}
	*into = form{words[0], words}
	c.Flags().VarP(into, "output", "o", into.choices())
}

func (f *form) choices() string { return strings.Join(f.words, " or ") }

// String implements pflag.Value.
func (f *form) String() string { return f.word }

// Type implements pflag.Value.
func (f *form) Type() string { return "string" }

// Set implements pflag.Value.
func (f *form) Set(word string) error {
	if !slices.Contains(f.words, word) {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "output", Detail: fmt.Sprintf("%.40q is no form of output", word), WayOut: "say " + f.choices()}
	}
	f.word = word
	return nil
}

// looking makes a command that shows something.
func looking(c *cobra.Command, run func(c *cobra.Command, output *form, args []string) error) *cobra.Command {
	var output form
	outputFlag(c, &output)
	c.RunE = func(c *cobra.Command, args []string) error { return run(c, &output, args) }
	return c
}

func (f *form) json() bool { return f.word == "json" }

// write writes a value as a line of JSON, or as text does.
func (f *form) write(w io.Writer, v any, text func(io.Writer) error) error {
	if f.json() {
		return writeJSON(w, v)
	}
	return text(w)
}

// writeJSON writes a value as a line.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // filters have < and >
	return e.Encode(v)
}

// list is a slice that JSON has as a list also where it is empty.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// message is an answer of a role as JSON, by the names that its protocol has.
type message struct{ proto.Message }

// MarshalJSON implements json.Marshaler.
func (m message) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m.Message)
}

// objectOf is a document in YAML as JSON has it; what is no YAML is its text.
func objectOf(text []byte) any {
	n, err := document.Parse(text)
	if err != nil {
		return string(text)
	}
	return n.Value()
}
