package config

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
)

// Setting is a value of a configuration that a flag and the environment can give, too.
// Either Text or On points to it. A secret has no flag: everybody can see flags in the
// list of processes.
type Setting struct {
	Flag  string // without --; empty: only the environment gives it
	Env   string
	Usage string
	Text  *string
	On    *bool
	Own   bool   // processes of one role differ in it, such as an id; only the role's own command and config check have the flag
	from  string // the flag or the variable that gave the value; "": none did
}

// OwnFlags adds the flags of the settings in which processes of a role differ.
func OwnFlags(f *pflag.FlagSet, cfg Configuration) {
	for _, s := range cfg.Settings() {
		if s.Own && f.Lookup(s.Flag) == nil { // config check has the flags of all roles, some of which share one
			f.String(s.Flag, "", s.Usage+" ("+s.Env+")")
		}
	}
}

// Override gives settings what flags and the environment say, flags first.
func Override(f *pflag.FlagSet, settings []Setting) error {
	var errs []error
	for i := range settings {
		x := &settings[i]
		value := os.Getenv(x.Env)
		if value != "" {
			x.from = x.Env
		}
		if flag := f.Lookup(x.Flag); flag != nil && flag.Changed {
			value, x.from = flag.Value.String(), "--"+x.Flag
		}
		switch {
		case x.from == "":
		case x.Text != nil:
			*x.Text = value
		default:
			on, err := strconv.ParseBool(value)
			if err != nil { // the value is of the environment: that of a flag has been parsed
				errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: x.Env, Detail: fmt.Sprintf("%.40q is neither true nor false", value), WayOut: "say true, or leave it out"})
				continue
			}
			*x.On = on
		}
	}
	return errors.Join(errs...)
}
