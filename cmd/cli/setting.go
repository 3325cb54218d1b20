package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
)

// setting is a value of a configuration that a flag and the environment can give.
// A secret has no flag: flags are in the list of processes, for all to see.
type setting struct {
	flag  string // empty: by the environment alone
	env   string
	usage string
	text  *string
	on    *bool
	own   bool   // one in which processes of a role differ, with a flag of its command alone
	from  string // the flag or the variable that gave it, once something did
}

// ownFlags adds the flags in which processes of a role differ.
func ownFlags(f *pflag.FlagSet, cfg configuration) {
	for _, s := range cfg.settings() {
		if s.own && f.Lookup(s.flag) == nil { // of another role
			f.String(s.flag, "", s.usage+" ("+s.env+")")
		}
	}
}

func override(f *pflag.FlagSet, settings []setting) error {
	var errs []error
	for i := range settings {
		x := &settings[i]
		value := os.Getenv(x.env)
		if value != "" {
			x.from = x.env
		}
		if flag := f.Lookup(x.flag); flag != nil && flag.Changed {
			value, x.from = flag.Value.String(), "--"+x.flag
		}
		switch {
		case x.from == "":
		case x.text != nil:
			*x.text = value
		default:
			on, err := strconv.ParseBool(value)
			if err != nil { // of the environment: a flag's has been parsed
				errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: x.env, Detail: fmt.Sprintf("%.40q is neither true nor false", value), WayOut: "say true, or leave it out"})
				continue
			}
			*x.on = on
		}
	}
	return errors.Join(errs...)
}
