package broker

import (
	"encoding/json"
	"net/http"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// object is a piece of a JSON document.
type object = map[string]any

// openAPI describes POST /v1/feed and /v1/why after OpenAPI 3.1. It is made
// from the descriptors of the messages, so it cannot fall behind them; the
// .proto says what each field means.
func openAPI() object {
	schemas := object{"Problem": problemSchema()}
	refused := content("application/problem+json", ref("Problem"))
	refused["description"] = "A refusal: switch on its reason."
	post := func(id, summary, gives string, request, answer proto.Message) object {
		body := content("application/json", schemaOf(request.ProtoReflect().Descriptor(), schemas))
		body["required"] = true
		ok := content("application/json", schemaOf(answer.ProtoReflect().Descriptor(), schemas))
		ok["description"] = gives
		return object{"post": object{
			"operationId": id,
			"summary":     summary,
			"parameters": []any{
				header(PriorityHeader, object{"type": "string", "enum": []any{"interactive", "prefetch"}}),
				header(CallerHeader, object{"type": "string"}),
				header(TimeoutHeader, object{"type": "string", "examples": []any{"200ms", "1.5s"}}),
			},
			"requestBody": body,
			"responses":   object{"200": ok, "default": refused},
		}}
	}
	return object{
		"openapi": "3.1.0",
		"info":    object{"title": "Millrace feed API", "version": "v1"},
		"paths": object{
			"/v1/feed": post("GetFeed", "One page of what a viewer should see.", "One page, with coverage and receipt.",
				&feedv1.GetFeedRequest{}, &feedv1.GetFeedResponse{}),
			"/v1/why": post("Why", "What became of a record in the answer to a request.", "The stage that dropped the record, or its place.",
				&feedv1.WhyRequest{}, &feedv1.WhyResponse{}),
		},
		"components": object{"schemas": schemas},
	}
}

func content(kind string, schema object) object {
	return object{"content": object{kind: object{"schema": schema}}}
}

func header(name string, schema object) object {
	return object{"name": name, "in": "header", "schema": schema}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// schemaOf adds the schema of a message, and of those in it, to schemas and
// returns the reference to it.
func schemaOf(m protoreflect.MessageDescriptor, schemas object) object {
	name := string(m.Name())
	if _, done := schemas[name]; done {
		return ref(name)
	}
	properties := object{}
	schemas[name] = object{"type": "object", "properties": properties, "additionalProperties": false}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		properties[string(f.Name())] = fieldSchema(f, schemas)
	}
	return ref(name)
}

func fieldSchema(f protoreflect.FieldDescriptor, schemas object) object {
	switch {
	case f.IsMap():
		return object{"type": "object", "additionalProperties": valueSchema(f.MapValue(), schemas)}
	case f.IsList():
		return object{"type": "array", "items": valueSchema(f, schemas)}
	}
	return valueSchema(f, schemas)
}

// valueSchema is how protobuf's JSON writes one value.
func valueSchema(f protoreflect.FieldDescriptor, schemas object) object {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.Int32Kind:
		return object{"type": "integer", "format": "int32"}
	case protoreflect.Int64Kind:
		return object{"type": []any{"integer", "string"}, "format": "int64"}
	case protoreflect.DoubleKind:
		return object{"type": []any{"number", "string"}, "format": "double"} // NaN is a string
	}
	switch f.Message().FullName() {
	case "google.protobuf.Timestamp":
		return object{"type": "string", "format": "date-time"}
	case "google.protobuf.Struct":
		return object{"type": "object"}
	case "google.protobuf.Value":
		return object{}
	}
	return schemaOf(f.Message(), schemas)
}

func problemSchema() object {
	text := object{"type": "string"}
	return object{
		"type": "object", "required": []any{"type", "title", "status", "detail", "reason"},
		"properties": object{
			"type": text, "title": text, "status": object{"type": "integer"}, "detail": text, "field": text, "way_out": text,
			"reason": object{"type": "string", "examples": []any{
				millrace.ReasonInvalid, millrace.ReasonUnknown, millrace.ReasonFilter, millrace.ReasonTooLarge, millrace.ReasonOverloaded, millrace.ReasonQuota,
				millrace.ReasonUnavailable, millrace.ReasonDeadline, millrace.ReasonCoverage, millrace.ReasonPageToken,
				millrace.ReasonForbidden, millrace.ReasonNotFound, millrace.ReasonMethod,
			}},
		},
	}
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(openAPI())
}
