package pagetoken

import (
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/interleave"
)

// Draft is the state of a feed whose items two models choose in turns, each from its own
// ranking (package interleave).
type Draft struct {
	Beside artefacts.Version // the second model; the first is [Cursor.Model]
	Next   interleave.Cursor // how far the draft is, where the next page goes on
}

// Ranked is the version of a model that ranked some groups of entities. An experiment may
// divide the entities of a request into groups; all that have the same Names have the same
// version.
type Ranked struct {
	Names   string // the model that the group's variants set; empty: they set none, and [Cursor.Model] ranked
	Version artefacts.Version
	Plain   bool // it ranked by its own weights, although variants of the experiment set others
}

// The flags of a variant in a page token. They are bits of one byte.
const (
	flagForced    = 1 // the viewer has the variant because the experiment's definition names the viewer
	flagUnapplied = 2 // the experiment is in [Cursor.Unapplied]
)

// appendVariants appends what later pages need to know of the variants that the viewer
// got (dealt), of the layers that hold the viewer out, and of the experiments that do not
// count (see [Cursor.Unapplied]). A layer is a group of experiments, of which a viewer
// gets a variant of one at most; a viewer whom the layer holds out gets none. heldOut and
// unapplied are names.
func appendVariants(b []byte, dealt []experiment.Assigned, heldOut, unapplied []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(heldOut)))
	for _, layer := range heldOut {
		b = appendPrefixed(b, layer)
	}
	b = binary.AppendUvarint(b, uint64(len(dealt)))
	for _, x := range dealt {
		sum, _ := hex.DecodeString(x.Checksum) // cannot fail: a checksum is hexadecimal
		for _, s := range []string{x.Experiment, x.Variant, x.Unit, string(sum)} {
			b = appendPrefixed(b, s)
		}
		flags := byte(0)
		if x.Forced {
			flags = flagForced
		}
		if slices.Contains(unapplied, x.Experiment) {
			flags |= flagUnapplied
		}
		b = binary.AppendUvarint(append(b, flags), uint64(x.Probability.Slots))
		b = binary.LittleEndian.AppendUint64(binary.AppendUvarint(b, uint64(x.Probability.Weight)), x.LifeSum)
	}
	return b
}

// readVariants reads what appendVariants wrote. Each variant lacks what it sets.
func readVariants(r *reader) (dealt []experiment.Assigned, heldOut, unapplied []string) {
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		heldOut = append(heldOut, string(r.bytes(r.uvarint())))
	}
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		var x experiment.Assigned
		for _, s := range []*string{&x.Experiment, &x.Variant, &x.Unit, &x.Checksum} {
			*s = string(r.bytes(r.uvarint()))
		}
		x.Checksum = hex.EncodeToString([]byte(x.Checksum))
		flags := r.bytes(1)
		x.Probability = experiment.Probability{Slots: int(r.uvarint()), Weight: int(r.uvarint())}
		if sum := r.bytes(8); !r.bad {
			x.Forced, x.LifeSum = flags[0]&flagForced != 0, binary.LittleEndian.Uint64(sum)
			if flags[0]&flagUnapplied != 0 {
				unapplied = append(unapplied, x.Experiment)
			}
		}
		dealt = append(dealt, x)
	}
	return dealt, heldOut, unapplied
}

// shareUnapplied is a bit that a page token adds to the share of an experiment in
// [Cursor.Unapplied]. A share is a number of 10,000 slots, so the bit is free.
const shareUnapplied = 1 << 16

// appendDivision appends what later pages need to divide the entities of a request among
// the variants of experiments as the first page did.
func appendDivision(b []byte, divided []experiment.Dealt, models []Ranked, unapplied []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(divided)))
	for _, x := range divided {
		share := uint64(x.Share)
		if slices.Contains(unapplied, x.Experiment) {
			share |= shareUnapplied
		}
		b = binary.AppendUvarint(appendPrefixed(b, x.Experiment), share)
		b = binary.LittleEndian.AppendUint64(b, x.Sum)
	}
	b = binary.AppendUvarint(b, uint64(len(models)))
	for _, m := range models {
		for _, s := range []string{m.Names, m.Version.Name, m.Version.Version, m.Version.Sum} {
			b = appendPrefixed(b, s)
		}
		plain := byte(0)
		if m.Plain {
			plain = 1
		}
		b = append(b, plain)
	}
	return b
}

// readDivision reads what appendDivision wrote.
func readDivision(r *reader) (divided []experiment.Dealt, models []Ranked, unapplied []string) {
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		x := experiment.Dealt{Experiment: string(r.bytes(r.uvarint())), Share: int(r.uvarint())}
		if x.Share&shareUnapplied != 0 {
			x.Share &^= shareUnapplied
			unapplied = append(unapplied, x.Experiment)
		}
		if sum := r.bytes(8); !r.bad {
			x.Sum = binary.LittleEndian.Uint64(sum)
		}
		divided = append(divided, x)
	}
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		var m Ranked
		for _, s := range []*string{&m.Names, &m.Version.Name, &m.Version.Version, &m.Version.Sum} {
			*s = string(r.bytes(r.uvarint()))
		}
		plain := r.bytes(1)
		m.Plain = !r.bad && plain[0] == 1
		models = append(models, m)
	}
	return divided, models, unapplied
}

// appendDraft appends what later pages need to go on with a draft.
func appendDraft(b []byte, d *Draft) []byte {
	for _, s := range []string{d.Beside.Name, d.Beside.Version, d.Beside.Sum} {
		b = appendPrefixed(b, s)
	}
	return binary.AppendUvarint(binary.LittleEndian.AppendUint64(b, d.Next.Seed), d.Next.Turns)
}

// readDraft reads what appendDraft wrote.
func readDraft(r *reader) *Draft {
	d := &Draft{}
	for _, s := range []*string{&d.Beside.Name, &d.Beside.Version, &d.Beside.Sum} {
		*s = string(r.bytes(r.uvarint()))
	}
	if seed := r.bytes(8); !r.bad {
		d.Next.Seed = binary.LittleEndian.Uint64(seed)
	}
	d.Next.Turns = r.uvarint()
	return d
}
