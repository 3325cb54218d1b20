package doors

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/internal/rpcerr"
)

// object is an object in a JSON document: the values, by key.
type object = map[string]any

// protoFile is feed.proto with its comments, which generated Go leaves out, as
// a FileDescriptorSet; make proto writes it.
//
//go:embed feed.binpb
var protoFile []byte

// openAPI returns the description of POST /v1/feed and /v1/why in OpenAPI 3.1. It is made
// from feed.proto and its comments, so it always agrees with them. What a .proto file cannot
// say is in the variable rules.
var openAPI = sync.OnceValue(func() object {
	file := described()
	d := openDocument{requests: object{}, answers: object{}}
	why := file.Services().ByName("FeedService").Methods()
	schemas := object{"Problem": problemSchema()}
	paths := object{"/v1/feed": d.post(why.ByName("GetFeed")), "/v1/why": d.post(why.ByName("Why"))}
	for _, part := range []object{d.requests, d.answers} {
		for name, schema := range part {
			schemas[name] = schema
		}
	}
	return object{
		"openapi":    "3.1.0",
		"info":       object{"title": "Millrace feed API", "version": "v1", "description": "What mid-tier services call. Errors are problem documents (RFC 9457).", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"}},
		"servers":    []any{object{"url": "/"}},
		"security":   []any{},
		"paths":      paths,
		"components": object{"schemas": schemas},
	}
})

// described returns the descriptor of feed.proto, with its comments.
func described() protoreflect.FileDescriptor {
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(protoFile, set); err != nil {
		panic(err) // the file is part of the binary
	}
	file, err := protodesc.NewFile(set.File[0], protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	return file
}

// openDocument collects the schemas of messages. No message is in both a request
// and an answer.
type openDocument struct{ requests, answers object }

// post describes a method as a path.
func (d *openDocument) post(m protoreflect.MethodDescriptor) object {
	body := content("application/json", d.message(m.Input(), d.requests))
	body["required"] = true
	ok := content("application/json", d.message(m.Output(), d.answers))
	ok["description"] = comment(m.Output())
	refused := content("application/problem+json", ref("Problem"))
	refused["description"] = "A refusal: switch on its reason."
	return object{"post": object{
		"operationId": string(m.Name()),
		"summary":     comment(m),
		"parameters": []any{
			header(admission.PriorityHeader, "What is shed first where there is too much to do: prefetch.", object{"type": "string", "enum": []any{"interactive", "prefetch"}, "default": "interactive"}),
			header(admission.CallerHeader, "Who calls, for quotas and metrics.", object{"type": "string"}),
			header(admission.TimeoutHeader, "How long the answer may take.", object{"type": "string", "examples": []any{"200ms", "1.5s"}}),
		},
		"requestBody": body,
		"responses":   object{"200": ok, "4XX": refused, "5XX": refused},
	}}
}

func content(kind string, schema object) object {
	return object{"content": object{kind: object{"schema": schema}}}
}

func header(name, what string, schema object) object {
	return object{"name": name, "in": "header", "required": false, "description": what, "schema": schema}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// comment returns the comment above d in the .proto file, as one paragraph.
func comment(d protoreflect.Descriptor) string {
	return strings.Join(strings.Fields(d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments), " ")
}

// message adds the schema of a message, and of the messages in it, to into, which is
// d.requests or d.answers. It returns the reference to the schema of m.
func (d *openDocument) message(m protoreflect.MessageDescriptor, into object) object {
	name := string(m.Name())
	if _, done := into[name]; done {
		return ref(name)
	}
	properties, required := object{}, []any{}
	schema := object{"type": "object", "description": comment(m), "properties": properties, "additionalProperties": false}
	into[name] = schema
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		r := rules[name+"."+string(f.Name())]
		properties[string(f.Name())] = d.field(f, r, into)
		if r.required || !f.HasPresence() && d.answers[name] != nil { // in an answer, fields that are zero are written too
			required = append(required, string(f.Name()))
		}
	}
	if len(required) > 0 {
		schema["required"] = required
	}
	return ref(name)
}

// field returns the schema of a field: that of its values, with what r adds.
func (d *openDocument) field(f protoreflect.FieldDescriptor, r rule, into object) object {
	var schema object
	switch {
	case f.IsMap():
		schema = object{"type": "object", "additionalProperties": d.value(f.MapValue(), into)}
	case f.IsList():
		schema = object{"type": "array", "items": d.value(f, into)}
	default:
		schema = d.value(f, into)
	}
	for name, bound := range r.bounds {
		schema[name] = bound
	}
	if r.values != nil {
		schema["enum"] = r.values
	}
	schema["description"] = comment(f)
	return schema
}

// value returns the schema of one value, as protobuf writes it in JSON. Where a request may
// write a value in several ways, the schema describes one of them.
func (d *openDocument) value(f protoreflect.FieldDescriptor, into object) object {
	answered := d.answers[string(f.ContainingMessage().Name())] != nil
	switch f.Kind() {
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.BytesKind:
		return object{"type": "string", "contentEncoding": "base64"}
	case protoreflect.Int32Kind:
		return object{"type": "integer", "format": "int32", "minimum": 0}
	case protoreflect.Int64Kind:
		if answered {
			return object{"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"}
		}
		return object{"type": "integer", "format": "int64"}
	case protoreflect.DoubleKind:
		name := string(f.Name())
		if answered && !strings.HasSuffix(name, "_millis") && !strings.HasSuffix(name, "_seconds") { // durations are always finite; other numbers, such as scores, may not be
			return object{"anyOf": []any{object{"type": "number", "format": "double"}, object{"type": "string", "enum": []any{"NaN", "Infinity", "-Infinity"}}}}
		}
		return object{"type": "number", "format": "double"}
	}
	switch f.Message().FullName() {
	case "google.protobuf.Timestamp":
		return object{"type": "string", "format": "date-time"}
	case "google.protobuf.Struct":
		return object{"type": "object", "additionalProperties": true}
	case "google.protobuf.Value":
		if answered {
			return object{} // anything
		}
		return attributeSchema
	}
	return d.message(f.Message(), into)
}

func problemSchema() object {
	text := func(what string) object { return object{"type": "string", "description": what} }
	var reasons []any
	for _, r := range rpcerr.Reasons() {
		reasons = append(reasons, string(r))
	}
	return object{
		"type": "object", "required": []any{"type", "title", "status", "detail", "reason"}, "additionalProperties": false,
		"description": "Why a request was refused.",
		"properties": object{
			"type":    text("A URN of the reason."),
			"title":   text("The reason in words."),
			"status":  object{"type": "integer", "minimum": 400, "maximum": 599, "description": "The HTTP status."},
			"detail":  text("What is wrong."),
			"field":   text("The field at fault, as the caller wrote it."),
			"way_out": text("What to do instead."),
			"reason":  object{"type": "string", "enum": reasons, "description": "The stable cause of the refusal."},
		},
	}
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(openAPI())
}
