package backup

import (
	"fmt"
	"io/fs"
)

// Damage is what is wrong with an object of a bucket. As an error it means that a restore
// refuses the object, and that another try does not help.
type Damage struct {
	Object string     `json:"object"` // its name in the bucket
	Kind   DamageKind `json:"kind"`
	Detail string     `json:"detail"` // what is wrong, in words
}

// DamageKind is what is wrong with an object.
type DamageKind string

// The kinds of damage.
const (
	Missing    DamageKind = "missing" // something names it, and it is not there
	WrongSize  DamageKind = "size"    // its size differs from the one in the object that names it, or is too large
	WrongBytes DamageKind = "hash"    // its hash differs from the one in the object that names it
	Torn       DamageKind = "torn"    // half written or altered, so that it cannot be read
	Foreign    DamageKind = "foreign" // it is of another cluster or partition, or stands under the name of another object
	Newer      DamageKind = "newer"   // written by a newer Millrace
	Misfit     DamageKind = "misfit"  // a part of a cut that doesn't fit the cut
	Link       DamageKind = "link"    // a link or a device, which is never followed
	Future     DamageKind = "future"  // dated ahead of now: it would be taken for the newest until then
	Extra      DamageKind = "extra"   // not needed, or not written by Millrace; harmless to a restore
)

func (d *Damage) Error() string {
	return fmt.Sprintf("backup: %s is damaged (%s): %s", d.Object, d.Kind, d.Detail)
}

// Is makes errors.Is report fs.ErrNotExist for damage of the kind Missing.
func (d *Damage) Is(target error) bool { return d.Kind == Missing && target == fs.ErrNotExist }

// newer returns the damage of an object of a format above ours.
func newer(name string, got int) *Damage {
	return &Damage{Object: name, Kind: Newer, Detail: fmt.Sprintf("it was written by a newer Millrace, in format %d, and this one reads format %d; use that one", got, format)}
}

// tooMany returns the damage of a bucket that has more than most objects under prefix.
func tooMany(prefix string, most int) error {
	return &Damage{Object: prefix, Kind: Extra, Detail: fmt.Sprintf("more than %d objects", most)}
}
