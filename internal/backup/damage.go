package backup

import (
	"fmt"
	"io/fs"
)

// Damage is something in a bucket that a restore refuses. It is never tried
// again.
type Damage struct {
	Object string     `json:"object"` // its name in the bucket
	Kind   DamageKind `json:"kind"`
	Detail string     `json:"detail"`
}

// DamageKind is what is wrong with an object.
type DamageKind string

// The kinds of damage.
const (
	Missing    DamageKind = "missing" // named, and not there
	WrongSize  DamageKind = "size"    // of another size than it is named with
	WrongBytes DamageKind = "hash"    // of other bytes than it is named with
	Torn       DamageKind = "torn"    // half written or altered, so that it says nothing
	Foreign    DamageKind = "foreign" // of another cluster, another partition, or under another's name
	Newer      DamageKind = "newer"   // written by a newer Millrace
	Misfit     DamageKind = "misfit"  // a part of a cut that doesn't fit the cut
	Link       DamageKind = "link"    // a link or a device, which is never followed
	Future     DamageKind = "future"  // dated ahead of now, so that it would be the newest for as long
	Extra      DamageKind = "extra"   // nothing that Millrace wrote; harmless to a restore
)

func (d *Damage) Error() string {
	return fmt.Sprintf("backup: %s is damaged (%s): %s", d.Object, d.Kind, d.Detail)
}

// Is makes what is missing fs.ErrNotExist.
func (d *Damage) Is(target error) bool { return d.Kind == Missing && target == fs.ErrNotExist }

func newer(name string, got int) *Damage {
	return &Damage{Object: name, Kind: Newer, Detail: fmt.Sprintf("it was written by a newer Millrace, in format %d, and this one reads format %d; use that one", got, format)}
}

// tooMany is the damage of a bucket that lists more than it is read for.
func tooMany(prefix string, most int) error {
	return &Damage{Object: prefix, Kind: Extra, Detail: fmt.Sprintf("more than %d objects", most)}
}
