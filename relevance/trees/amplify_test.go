package trees

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// What an importer allocates, what is garbage by then too, is in proportion to the
// file, whatever the file says: a pack of few bytes must not take a node's memory.
func TestMemoryIsInProportion(t *testing.T) {
	const perByte, beside = 32, 16 << 20
	many := func(s string, n int) string { return strings.Repeat(s, n) }
	plain := func(key, value string) string {
		return strings.Replace(xgbModel("reg:squarederror", "0", "0", "[0]", xgbTree), `"attributes": {}`, `"`+key+`": `+value, 1)
	}
	ubj := func(value string) string {
		key := "x"
		b := append([]byte("{L"), binary.BigEndian.AppendUint64(nil, uint64(len(key)))...)
		return string(b) + key + value
	}
	typed := func(kind byte, n int) string {
		return "[$" + string(kind) + "#l" + string(binary.BigEndian.AppendUint32(nil, uint32(n)))
	}
	dumpHead := `{"version": "v4", "num_tree_per_iteration": 1, "max_feature_idx": 1, "feature_names": ["a", "b"], "tree_info": [`
	dumpSets := func(category string, n int) string {
		return dumpHead + `{"tree_structure": ` + many(`{"split_feature":0,"threshold":"`+category+`","decision_type":"==","missing_type":"None","left_child":`, n) +
			`{"leaf_value":0,"leaf_index":-1}` + func() string {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, `,"right_child":{"leaf_value":0,"leaf_index":%d}}`, i)
			}
			return b.String()
		}() + `}]}`
	}
	head := stump(0, "0.5")
	head = head[:strings.Index(head, "Tree=0")]
	files := map[string]string{
		"XGBoost: categories that are shared":      amplified(t, 600, "[16777215]"),
		"XGBoost: a category each, far away":       farEach(t, 600, 16777215),
		"XGBoost: a category each, as far as bits": farEach(t, 600, 4095),
		"XGBoost: empty lists":                     plain("x", "["+many("[],", 100_000)+"[]]"),
		"XGBoost: empty objects":                   plain("x", "["+many("{},", 100_000)+"{}]"),
		"XGBoost: digits":                          plain("x", "["+many("1,", 100_000)+"1]"),
		"XGBoost: nulls":                           plain("x", "["+many("null,", 100_000)+"null]"),
		"XGBoost: NaN":                             plain("x", "["+many("NaN,", 100_000)+"NaN]"),
		"XGBoost: empty texts":                     plain("x", "["+many(`"",`, 100_000)+`""]`),
		"XGBoost: empty trees":                     xgbModel("reg:squarederror", "0", "0", "["+many("0,", 100_000)+"0]", many("{},", 100_000)+"{}"),
		"XGBoost: base scores":                     xgbModel("reg:squarederror", "["+many(",", 300_000)+"]", "0", "[0]", xgbTree),
		"XGBoost: most classes and features":       strings.Replace(xgbModel("multi:softprob", "0.5", "1024", "[0]", xgbTree), `"num_feature": "2", "num_target"`, `"num_feature": "65536", "num_target"`, 1),
		"UBJSON: nothing, counted":                 ubj(typed('[', 200_000) + many(typed('Z', 100_000), 200_000/8)),
		"UBJSON: true, counted":                    ubj(typed('[', 200_000) + many(typed('T', 100_000), 200_000/8)),
		"UBJSON: bytes":                            ubj(typed('U', 200_000) + many("\x00", 200_000) + "}"),
		"UBJSON: marked bytes":                     ubj("[" + many("U\x00", 100_000) + "]}"),
		"UBJSON: marked booleans":                  ubj("[" + many("T", 100_000) + "]}"),
		"UBJSON: empty objects":                    ubj("[" + many("{}", 1_000_000) + "]}"),
		"UBJSON: objects of no-ops":                ubj("[" + many("{U\x01aZ}", 60_000) + "]}"),
		"LightGBM: leaves that are not there":      head + "Tree=0\nnum_leaves=2097152\n\nend of trees\n",
		"LightGBM: trees of leaves not there":      head + many("Tree=0\nnum_leaves=1\nleaf_value=1\n", 5000) + "Tree=0\nnum_leaves=2097152\nleaf_value=1\nend of trees\n",
		"LightGBM: fields":                         head + "Tree=0\n" + fields(500_000) + "end of trees\n",
		"LightGBM: trees of one leaf":              head + many("Tree=0\nnum_leaves=1\nleaf_value=1\n", 20_000) + "end of trees\n",
		"LightGBM: most features":                  strings.Replace(head, "max_feature_idx=1", "max_feature_idx=65535", 1) + "end of trees\n",
		"LightGBM dump: categories far away":       dumpSets("16777215", 600),
		"LightGBM dump: a category as far as bits": dumpSets("4095", 600),
		"LightGBM dump: many categories":           dumpSets(many("0||", 1000)+"1", 30),
		"LightGBM dump: no separators":             dumpSets(many("||", 100_000), 1),
		"LightGBM dump: empty trees":               dumpHead + many(`{},`, 100_000) + `{"tree_structure":{}}]}`,
		"LightGBM dump: empty nodes":               dumpHead + `{"tree_structure":` + many(`{"left_child":{},"right_child":`, 5000) + `{}` + many("}", 5000) + `}]}`,
		"LightGBM dump: names":                     strings.Replace(dumpHead, `"feature_names": [`, `"feature_names": [`+many(`"",`, 100_000), 1) + `]}`,
	}
	for what, src := range files {
		t.Run(what, func(t *testing.T) {
			var err error
			took := allocated(func() { _, err = Import([]byte(src)) })
			t.Logf("%d bytes: %d KiB, %d a byte: %.150v", len(src), took>>10, took/uint64(len(src)), err)
			if took > perByte*uint64(len(src))+beside {
				t.Errorf("%d bytes allocate %d MiB: %.150v", len(src), took>>20, err)
			}
		})
	}
}

// fields are so many that no tree has.
func fields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%x=\n", i)
	}
	return b.String()
}
