package compute

import "github.com/millrace/millrace/internal/column"

// Appender takes the rows of a generated decoder.
type Appender = column.Appender

// The kinds of columns that a generated filter reads.
const (
	KindBool    = column.Bool
	KindInt     = column.Int
	KindTime    = column.Time
	KindDouble  = column.Double
	KindString  = column.String
	KindDoubles = column.Doubles
	KindStrings = column.Strings
)
