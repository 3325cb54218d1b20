package doors

import (
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/findings"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/partition"
)

// rule is what OpenAPI says of a field beyond its type and comment.
type rule struct {
	required bool   // the field is always there; without a rule, that is so for fields of an answer that have no presence in proto
	values   []any  // all values that the field can have; nil: not listed
	bounds   object // further keywords of JSON Schema, by name
}

// nameOf returns the schema of a name of 1 to n characters.
func nameOf(n int) object { return object{"type": "string", "minLength": 1, "maxLength": n} }

func values(all ...string) (out []any) {
	for _, v := range all {
		out = append(out, v)
	}
	return out
}

// attributeSchema is the schema of an attribute of a viewer.
var attributeSchema = object{"anyOf": []any{
	object{"type": "string", "maxLength": limits.MaxAttributeBytes},
	object{"type": "number"},
	object{"type": "boolean"},
	object{"type": "array", "maxItems": limits.MaxListLen, "items": object{"type": "string"}},
	object{"type": "array", "maxItems": limits.MaxListLen, "items": object{"type": "number"}},
}}

var always = rule{required: true}

// rules are the rules of fields, by MESSAGE.FIELD. A field that is not here has none.
var rules = map[string]rule{
	"GetFeedRequest.feed":         {required: true, bounds: object{"pattern": limits.NamePattern.String()}},
	"GetFeedRequest.entities":     {required: true, bounds: object{"minItems": 1, "maxItems": intake.MaxEntities, "items": nameOf(millrace.MaxEntityBytes)}},
	"GetFeedRequest.types":        {bounds: object{"maxItems": limits.MaxTypes, "items": nameOf(millrace.MaxTypeBytes)}},
	"GetFeedRequest.filter":       {bounds: object{"maxLength": limits.MaxFilterBytes}},
	"GetFeedRequest.limit":        {bounds: object{"minimum": 1, "maximum": limits.MaxLimit}},
	"GetFeedRequest.model":        {bounds: object{"pattern": "^$|" + limits.NamePattern.String()}},
	"GetFeedRequest.min_coverage": {bounds: object{"minimum": 0, "maximum": 1}},
	"GetFeedRequest.fields":       {bounds: object{"maxItems": limits.MaxFields, "items": object{"type": "string", "minLength": 1}}},
	"GetFeedRequest.receipt":      {values: values("", limits.ReceiptCompact, limits.ReceiptFull)},
	"Viewer.id":                   {bounds: object{"maxLength": limits.MaxViewerIDBytes}},
	"Viewer.attributes":           {bounds: object{"maxProperties": limits.MaxAttributes}},
	"Viewer.features":             {bounds: object{"maxProperties": limits.MaxFeatures}},
	"WhyRequest.request":          always,
	"WhyRequest.record":           {required: true, bounds: object{"minLength": 1, "maxLength": millrace.MaxIDBytes}},
	"WhyRequest.entity":           {bounds: object{"maxLength": millrace.MaxEntityBytes}},

	"GetFeedResponse.coverage": always,
	"GetFeedResponse.receipt":  always,
	"Item.time":                always,
	"Item.record":              always,
	"Also.time":                always,
	"Receipt.as_of":            always,
	"Explain.times":            always,
	"Rival.time":               always,
	"WhyResponse.coverage":     always,
	"Item.also":                {bounds: object{"maxItems": 3}},
	"Missing.partition":        {bounds: object{"maximum": partition.Count - 1}},
	"Missing.reason":           {values: values(fanout.MissTimeout, fanout.MissUnreachable, fanout.MissNoReplica, fanout.MissBehind, fanout.MissOverloaded, fanout.MissTooLarge, fanout.MissModel, fanout.MissOlder, fanout.MissError)},
	"Receipt.execution":        {values: values("", "generated", "interpreted", "generated,interpreted")},
	"ItemExplain.cache":        {values: values("fat", "store")},
	"WhyResponse.stage":        {values: values(append([]string{findings.Never, findings.Unanswered}, findings.Stages...)...)},
	"Finding.stage":            {values: values(findings.Stages...)},
	"FilterClause.outcome":     {values: values(strings.Fields("false null error nan")...)},
}
