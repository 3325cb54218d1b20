// Package secure protects connections: by TLS with certificates from files, and by
// passwords and tokens from files. It allows plain text only on loopback, unless the
// configuration says otherwise. Files are read again when they change. If a file then
// cannot be read or is half-written, what it held before stays in use, and the log says
// so.
package secure

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/millrace/millrace"
)

// watched is something that is read from files, and read again when they change.
type watched interface {
	// look reads the files again if they have changed, and returns the key of the
	// configuration that names them and what is wrong with them: "" if nothing is.
	look() (field, fault string)
}

// opened has everything that the process has opened from files. It refers to each by a
// weak pointer: once nothing else uses the thing, its function in all returns nil.
var opened struct {
	sync.Mutex
	all []func() watched
}

// watch adds x to opened, so that Faults and Lives look at it.
func watch[T any, P interface {
	*T
	watched
}](x P) {
	used := weak.Make((*T)(x))
	opened.Lock()
	defer opened.Unlock()
	opened.all = append(opened.all, func() watched {
		if x := used.Value(); x != nil {
			return P(x)
		}
		return nil
	})
}

// inUse returns what the process has opened and still uses, and drops the rest from opened.
func inUse() (all []watched) {
	opened.Lock()
	defer opened.Unlock()
	opened.all = slices.DeleteFunc(opened.all, func(use func() watched) bool {
		x := use()
		if x != nil {
			all = append(all, x)
		}
		return x == nil
	})
	return all
}

// Life is the time in which a certificate is valid.
type Life struct{ Begins, Ends time.Time }

// Lives returns the lives of the certificates that the process uses, by the keys of the
// configuration that name them. If several certificates have the same key of the
// configuration, it returns the life that ends first.
func Lives() map[string]Life {
	lives := map[string]Life{}
	for _, x := range inUse() {
		f, ok := x.(*Files)
		if !ok {
			continue
		}
		m := f.current()
		if m.pair == nil {
			continue
		}
		if was, ok := lives[f.field]; !ok || m.pair.Leaf.NotAfter.Before(was.Ends) {
			lives[f.field] = Life{m.pair.Leaf.NotBefore, m.pair.Leaf.NotAfter}
		}
	}
	return lives
}

// Faults returns what is wrong with the files in use, by the keys of the configuration
// that name them: a file has changed and cannot be used, so that what it held before
// stays, or the other side would refuse a certificate now. It looks at all files, also
// those that no handshake has used lately.
func Faults() map[string]string {
	faults := map[string]string{}
	for _, x := range inUse() {
		field, fault := x.look()
		switch was := faults[field]; {
		case fault == "" || strings.Contains(was, fault):
		case was == "":
			faults[field] = fault
		default:
			faults[field] = was + "; " + fault
		}
	}
	return faults
}

// textOf returns the text of an error; "" for nil.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// SystemCA, in place of the name of a CA file, stands for the authorities that the
// machine trusts.
const SystemCA = "system"

// TLS names the PEM files of a connection. Its zero value is no TLS.
type TLS struct {
	CA         string `yaml:"ca,omitempty" form:"PEM file" doc:"authorities whose certificates the other side must show; system: those that the machine trusts; without it there is no TLS"`
	Cert       string `yaml:"cert,omitempty" form:"PEM file" doc:"the certificate to show, where the other side wants one"`
	Key        string `yaml:"key,omitempty" form:"PEM file" secret:"file" doc:"the key of that certificate"`
	ServerName string `yaml:"server_name,omitempty" default:"the host of its address" doc:"the name that the other side's certificate must have"`
}

// On reports whether there is TLS.
func (t TLS) On() bool { return t != TLS{} }

// validate refuses a file that is of no use without another that is missing, such as a
// key without a certificate. field is the key of the configuration that has t.
func (t TLS) validate(field string) error {
	invalid := func(key, detail, wayOut string) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field + "." + key, Detail: detail, WayOut: wayOut}
	}
	switch {
	case !t.On():
	case t.CA == "":
		return invalid("ca", "nothing says whose certificates the other side must show", `name a PEM file of authorities, or "system" for those that the machine trusts`)
	case t.Cert != "" && t.Key == "":
		return invalid("key", "there is a certificate and no key", "name the PEM file of its key")
	case t.Cert == "" && t.Key != "":
		return invalid("cert", "there is a key and no certificate", "name the PEM file of its certificate")
	}
	return nil
}

// Plain says whether a connection may be in plain text.
type Plain struct {
	Field    string // the key of the configuration that has tls and insecure
	Insecure bool   // plain text is allowed everywhere
}

// Check refuses plain text to or on an address, host:port, that is not on loopback,
// unless Insecure is set.
func (p Plain) Check(addr string) error {
	if p.Insecure {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: p.Field, Detail: fmt.Sprintf("%.100q is no host:port: %v", addr, err), WayOut: "write it as 127.0.0.1:9092"}
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	key := func(name string) string {
		if p.Field == "" {
			return name
		}
		return p.Field + "." + name
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: cmp.Or(p.Field, "insecure"), Detail: fmt.Sprintf("%s is beyond loopback, where plain text can be read and changed by others", addr),
		WayOut: fmt.Sprintf("give %s (ca, and what the other side asks for), or say %s: true if the network is guarded by other means", key("tls"), key("insecure")),
	}
}
