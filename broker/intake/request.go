package intake

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/memory"
)

// ReadJSON parses a JSON request into m strictly. It holds the memory that parsing takes,
// without that of the entities, from budget until it returns. The error is a refusal, which
// names the field at fault if there is one.
//
// [JSON] first checks the limits and reads the entities, which are most of a large
// request.
func ReadJSON(b []byte, m proto.Message, budget *memory.Budget) error {
	path := entitiesOf(m)
	text, err := JSON(b, path...)
	if err != nil && len(path) > 1 {
		return limits.Under(path[0], err)
	}
	if err != nil {
		return err
	}
	loan := budget.Borrow()
	defer loan.Return()
	if err := loan.Hold(text.Cost); err != nil {
		return err
	}
	if err = protojson.Unmarshal(text.Rest, m); err == nil {
		setEntities(m, text.Entities)
		return nil
	}
	b = text.Rest
	// protojson refuses half of a surrogate pair with one of these two texts, and
	// encoding/json accepts it.
	if says := err.Error(); (strings.Contains(says, "unexpected EOF") || strings.Contains(says, "invalid escape code")) && json.Valid(b) {
		return limits.Invalid("", `write both halves, such as \ud83d\ude00, or the character itself`, `an escape such as \ud800 is half of a character`)
	}
	if e := fieldAtFault(b, m.ProtoReflect().Descriptor(), ""); e != nil {
		return e
	}
	return limits.Invalid("", "send one JSON object", "%s", plain(err))
}

// entitiesOf returns the path of field names to the entities of a request.
func entitiesOf(m proto.Message) []string {
	if _, inquires := m.(*feedv1.WhyRequest); inquires {
		return []string{"request", "entities"}
	}
	return []string{"entities"}
}

// setEntities sets the entities of m to those that [JSON] has read. If JSON has read
// none, m keeps those that protojson has read: JSON does not find the list where its
// name is spelled with escapes.
func setEntities(m proto.Message, entities []string) {
	if len(entities) == 0 {
		return
	}
	switch m := m.(type) {
	case *feedv1.GetFeedRequest:
		m.Entities = entities
	case *feedv1.WhyRequest:
		if m.Request != nil {
			m.Request.Entities = entities
		}
	}
}

// fieldAtFault parses each field alone, by name in order, and returns the refusal of the
// first that protojson refuses. It returns nil if there is none, or if b is no JSON
// object.
func fieldAtFault(b []byte, of protoreflect.MessageDescriptor, path string) error {
	var fields map[string]json.RawMessage
	if json.Unmarshal(b, &fields) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		fd := of.Fields().ByJSONName(name)
		if fd == nil {
			fd = of.Fields().ByTextName(name)
		}
		if fd == nil {
			return &millrace.Error{Reason: millrace.ReasonUnknown, Field: path + name, Detail: "there is no such field", WayOut: "use one of " + fieldNames(of)}
		}
		alone, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
		if err != nil {
			return nil
		}
		bad := protojson.Unmarshal(alone, dynamicpb.NewMessage(of))
		if bad == nil {
			continue
		}
		if isOurs(fd) {
			if e := fieldAtFault(fields[name], fd.Message(), path+name+"."); e != nil {
				return e
			}
		}
		return limits.Invalid(path+string(fd.Name()), "send "+wanted(fd), "%s", plain(bad))
	}
	return nil
}

// isOurs reports whether a field is a single message that the feed API defines, so that
// its own fields can be searched.
func isOurs(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && !fd.IsList() && !fd.IsMap() && fd.Message().ParentFile() == feedv1.File_millrace_feed_v1_feed_proto
}

// wanted returns what a field takes, in JSON's terms, such as "a list, each a string".
func wanted(fd protoreflect.FieldDescriptor) string {
	one := map[protoreflect.Kind]string{
		protoreflect.BoolKind: "true or false", protoreflect.StringKind: "a string",
		protoreflect.Int64Kind: "a whole number", protoreflect.DoubleKind: "a number",
	}[fd.Kind()]
	switch {
	case fd.IsMap():
		return "an object"
	case fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Timestamp":
		return "a time in RFC 3339, such as 2026-01-02T15:04:05Z"
	case fd.Message() != nil:
		return "an object"
	case fd.IsList():
		return "a list, each " + one
	}
	return one
}

func fieldNames(of protoreflect.MessageDescriptor) string {
	var names []string
	for i := range of.Fields().Len() {
		names = append(names, string(of.Fields().Get(i).Name()))
	}
	return strings.Join(names, ", ")
}

// plain returns the text of an error of protobuf without its prefix "proto: ".
func plain(err error) string {
	s := strings.ReplaceAll(fmt.Sprint(err), "\u00a0", " ") // protobuf varies the spaces of its errors on purpose
	return strings.TrimPrefix(s, "proto: ")
}
