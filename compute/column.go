package compute

import "github.com/millrace/millrace/internal/column"

// Appender collects the rows that a generated decoder makes.
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
