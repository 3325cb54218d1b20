package secure

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/millrace/millrace"
)

// Secret is a password or a token. It is never printed.
type Secret string

// String implements fmt.Stringer.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(hidden)"
}

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return s.String() }

// MarshalText implements encoding.TextMarshaler, for documents and logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Login is a user and a password, which is given as it is, or in a file.
type Login struct {
	Username     string `yaml:"username,omitempty" doc:"who logs in"`
	Password     Secret `yaml:"password,omitempty" doc:"its password; better in a file, or in the environment"`
	PasswordFile string `yaml:"password_file,omitempty" form:"file" secret:"file" doc:"a file with its password alone, read again when it changes"`
}

// On reports whether a login is configured.
func (l Login) On() bool { return l != Login{} }

// Open returns the source of the password. It refuses a login without a user, without a
// password or with two. field is the key of the configuration that has l. A nil log is
// slog.Default().
func (l Login) Open(field string, log *slog.Logger) (*Source, error) {
	invalid := func(key, detail, wayOut string) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field + "." + key, Detail: detail, WayOut: wayOut}
	}
	switch {
	case l.Username == "":
		return nil, invalid("username", "there is a password and no user", "name the user that it is of")
	case l.Password == "" && l.PasswordFile == "":
		return nil, invalid("password_file", fmt.Sprintf("the user %s has no password", l.Username), "name a file that holds it")
	case l.Password != "" && l.PasswordFile != "":
		return nil, invalid("password_file", "there are two passwords", "leave one out, of the file, the configuration and the environment")
	case l.Password != "":
		return &Source{field: field, good: string(l.Password)}, nil
	}
	return OpenSource(l.PasswordFile, field+".password_file", log)
}

// Source is a secret that may come from a file, which is read again when it
// changes.
type Source struct {
	file  string // empty: the secret is fixed, and not from a file
	field string // the key of the configuration that names the file
	log   *slog.Logger
	check func(text string) error // nil: any text but an empty one is good

	mu    sync.Mutex
	stamp []os.FileInfo // what os.Stat said of the file before it was last read with success
	good  string        // what the file held then
	fault string        // why the last reading failed; "" if it did not
	bad   string        // the text that check refused last
	wrong error         // why check refused it; nil: it has accepted a text since
}

const (
	// maxSecretBytes bounds a file with one secret: a token may be some kilobytes.
	maxSecretBytes = 64 << 10
	// maxTextBytes bounds a file with many secrets: a thousand callers' tokens are some
	// 64 KiB.
	maxTextBytes = 1 << 20
)

// OpenSource reads the secret in a file, at most 64 KiB. Space around it, and a byte
// order mark before it, do not count. field is the key of the configuration that names
// the file. A nil log is slog.Default().
func OpenSource(file, field string, log *slog.Logger) (*Source, error) {
	if log == nil {
		log = slog.Default()
	}
	return (&Source{file: file, field: field, log: log}).open("name a file that this process can read, with the secret alone in it")
}

// OpenText is like OpenSource, for a file whose text is good if check returns nil. The
// text may be empty, and has at most 1 MiB. The log must not be nil.
func OpenText(file, field string, log *slog.Logger, check func(text string) error) (*Source, error) {
	return (&Source{file: file, field: field, log: log, check: check}).open("name a file that this process can read, and mend it")
}

func (s *Source) open(wayOut string) (*Source, error) {
	if err := s.read(); err != nil {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: s.field, Detail: err.Error(), WayOut: wayOut}
	}
	watch(s)
	return s, nil
}

// read reads the file, if it has changed or the last reading failed. After an error good
// stays as it was. The caller holds mu, except in open, before anybody else has s.
func (s *Source) read() error {
	stamp, err := stampsOf([]string{s.file})
	if err != nil {
		return err
	}
	if s.stamp != nil && s.fault == "" && same(stamp, s.stamp) {
		return nil
	}
	most := int64(maxSecretBytes)
	if s.check != nil {
		most = maxTextBytes
	}
	if n := stamp[0].Size(); n > most {
		return fmt.Errorf("%s has %d bytes, and may have %d", s.file, n, most)
	}
	text, err := readFile(s.file)
	if err != nil {
		return err
	}
	secret := strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff")) // some editors write this byte order mark
	switch {
	case s.check == nil && secret == "":
		return fmt.Errorf("%s is empty", s.file)
	case s.check == nil:
	case s.wrong != nil && secret == s.bad:
		return s.wrong
	default:
		if err := s.check(secret); err != nil {
			s.bad, s.wrong = secret, fmt.Errorf("%s: %w", s.file, err)
			return s.wrong
		}
		s.bad, s.wrong = "", nil
	}
	s.good, s.stamp = secret, stamp
	return nil
}

// Current returns the secret that the file holds now, or, if that cannot be used, the
// last good one.
func (s *Source) Current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == "" {
		return s.good
	}
	if now := textOf(s.read()); now != s.fault {
		if s.fault = now; now != "" {
			s.log.Error("a secret has changed and cannot be used; the last good one stays", "field", s.field, "err", now)
		}
	}
	return s.good
}

// look implements watched.
func (s *Source) look() (field, fault string) {
	s.Current()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.field, s.fault
}
