// Package permit decides who may do what. It identifies callers by client certificates and
// bearer tokens, gives them the roles of the configuration, and has one table of what each
// role may call.
package permit

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/asn1"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// Role is what an identity is in a cluster.
type Role string

// The roles.
const (
	Caller      Role = "caller"      // asks brokers for feeds
	Node        Role = "node"        // an index node: tells other nodes which timelines are hot, and reads partitions from them
	Broker      Role = "broker"      // asks index nodes
	Partitioner Role = "partitioner" // calls no other role
	Monitor     Role = "monitor"     // reads metrics
	Operator    Role = "operator"    // may do everything; coordinators, and people who run the cluster
)

var roles = []Role{Caller, Node, Broker, Partitioner, Monitor, Operator}

// The prefixes of names by what identifies them: a token of the file of tokens, the subject
// of a signed token, a SPIFFE id. A name without such a prefix is the common name of a
// certificate. So no token can take the name of a certificate.
const (
	tokenName   = "token:"
	subjectName = "jwt:"
	spiffeName  = "spiffe:"
)

// anybody stands in the table for callers with or without an identity.
var anybody = []Role{"anybody"}

// known stands in the table for every identity with a role.
var known = roles

// Config says which identities have which roles, and how identities are shown.
type Config struct {
	Identities map[string][]Role `yaml:"identities,omitempty" name:"NAME" choices:"caller, node, broker, partitioner, monitor, operator" doc:"the roles of who shows a certificate with this SPIFFE id, or else this common name; token:NAME is who has the token of that name, and jwt:SUBJECT who has a signed token of that subject"`
	Callers    map[string]Rights `yaml:"callers,omitempty" name:"NAME"`
	Tokens     string            `yaml:"tokens,omitempty" form:"file" secret:"file" doc:"bearer tokens, a line each: a name, a space, and the token; read again when it changes; an empty file knows nobody"`
	JWT        JWT               `yaml:"jwt,omitempty"`
	Probes     bool              `yaml:"probes,omitempty" doc:"true: livez, readyz and metrics of the admin port need no certificate"`
}

// On reports whether the configuration asks callers to identify themselves. If it does not,
// everybody may do everything.
func (c Config) On() bool {
	return len(c.Identities) > 0 || len(c.Callers) > 0 || c.Tokens != "" || c.JWT != (JWT{})
}

// ByToken reports whether callers may have a token in place of a certificate.
func (c Config) ByToken() bool { return c.Tokens != "" || c.JWT != (JWT{}) }

// Policy decides which calls are permitted. A nil Policy permits everything.
type Policy struct {
	identities map[string][]Role
	callers    map[string]Rights
	tokens     *tokens   // nil: there is no file of tokens
	jwt        *verifier // nil: signed tokens are not taken
	probes     bool      // the paths in probed need no certificate
}

// field is the configuration key of a Config.
const field = "authorization"

// Open reads the files of the configuration, and returns its policy; nil if the
// configuration is not On. The error has all faults, joined.
func (c Config) Open(log *slog.Logger) (*Policy, error) {
	if !c.On() {
		return nil, nil
	}
	var errs []error
	if len(c.Identities) == 0 {
		errs = append(errs, invalid("identities", "nobody has a role", "name identities and their roles, such as broker-1: [broker]"))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Identities)) {
		if name == "" || name == others || name == tokenName || name == subjectName {
			errs = append(errs, invalid("identities", fmt.Sprintf("%q names nobody", name), "name an identity by its SPIFFE id, its common name, token:NAME or jwt:SUBJECT: roles are given to nobody else"))
		}
		if strings.HasPrefix(name, tokenName) && c.Tokens == "" {
			errs = append(errs, invalid("identities."+name, "there is no file of tokens that could name it", "name the file in "+field+".tokens, or take the identity out"))
		}
		for _, r := range c.Identities[name] {
			if !slices.Contains(roles, r) {
				errs = append(errs, invalid("identities."+name, fmt.Sprintf("%.40q is no role", r), fmt.Sprintf("roles are %v", roles)))
			}
		}
	}
	errs = append(errs, c.checkCallers()...)
	p := &Policy{identities: c.Identities, callers: c.Callers, probes: c.Probes}
	var err error
	if c.Tokens != "" {
		p.tokens, err = openTokens(c.Tokens, log)
		errs = append(errs, err, c.checkTokens(p.tokens))
	}
	named := slices.ContainsFunc(slices.Collect(maps.Keys(c.Identities)), func(name string) bool { return strings.HasPrefix(name, subjectName) })
	switch {
	case named && c.JWT == (JWT{}):
		errs = append(errs, invalid("identities", "subjects of signed tokens have roles, and nothing says which keys sign tokens", "say it in "+field+".jwt, or take the names that begin with jwt: out"))
	case !named && c.JWT != (JWT{}):
		errs = append(errs, invalid("identities", "signed tokens are taken, and no subject of one has a role", "name subjects as jwt:SUBJECT: a name without jwt: is that of a certificate"))
	}
	if c.JWT != (JWT{}) {
		p.jwt, err = c.JWT.open(log)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

func invalid(key, detail, wayOut string) error {
	return millrace.Invalid(field+"."+key, detail, wayOut)
}

// byToken reports whether a caller may identify itself by a token alone.
func (p *Policy) byToken() bool { return p.tokens != nil || p.jwt != nil }

// Identity is a caller, as far as it has identified itself.
type Identity struct {
	Name   string // empty: not known
	Roles  []Role
	Rights *Rights // what it may ask of feeds; nil: everything
}

// is reports whether the identity has one of some roles.
func (i Identity) is(some []Role) bool {
	return slices.ContainsFunc(i.Roles, func(r Role) bool { return slices.Contains(some, r) })
}

func (i Identity) String() string { return cmp.Or(i.Name, "somebody unknown") }

// Identify returns the identity of a caller: by the bearer token in the header authorization
// if that is not empty, else by the certificate of conn. A caller without a certificate has
// an empty name. The error refuses a token that is not known, whatever the certificate.
func (p *Policy) Identify(conn *tls.ConnectionState, authorization string) (Identity, error) {
	if authorization == "" {
		return p.certified(conn), nil
	}
	token, ok := cutBearer(authorization)
	if !ok {
		return Identity{}, refused("the header authorization has no bearer token", "send: authorization: Bearer TOKEN")
	}
	name, err := p.nameOf(token)
	if err != nil {
		return Identity{}, err
	}
	return p.named(name), nil
}

// certified returns the identity of the certificate of a connection; without one, it has an
// empty name.
func (p *Policy) certified(conn *tls.ConnectionState) Identity { return p.named(shownBy(conn)) }

func (p *Policy) named(name string) Identity {
	roles := p.identities[name]
	return Identity{name, roles, p.rights(name, roles)}
}

func cutBearer(header string) (string, bool) {
	kind, token, ok := strings.Cut(header, " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(kind, "bearer")
}

// nameOf returns the name that a bearer token gives: token:NAME or jwt:SUBJECT.
func (p *Policy) nameOf(token string) (string, error) {
	if name, ok := p.tokens.name(token); ok {
		return tokenName + name, nil
	}
	if p.jwt != nil {
		subject, err := p.jwt.name(token)
		if err != nil {
			return "", err
		}
		return subjectName + subject, nil
	}
	return "", refused("the bearer token is not known", "send one that the file of tokens has")
}

// checkTokens refuses an identity that has the name of a token without the prefix token: and
// so gives its roles to a certificate, which is probably a mistake.
func (c Config) checkTokens(t *tokens) error {
	if t == nil {
		return nil // Open has the error already
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Values(t.current())) {
		_, certificate := c.Identities[name]
		if _, token := c.Identities[tokenName+name]; certificate && !token {
			errs = append(errs, invalid("identities."+name, "the file of tokens has this name, and the roles here are those of a certificate", fmt.Sprintf("write %s%s for the token ([]: it has no roles), or take it out of %s", tokenName, name, c.Tokens)))
		}
	}
	return errors.Join(errs...)
}

// shownBy returns the name that a connection's verified certificate gives: its SPIFFE id, or
// else its common name; "" if there is no certificate or it gives no name. A common name
// with the prefix of another kind of name gives none. Nor does a certificate with several
// SPIFFE ids or common names, since it cannot be known which one the authority meant
// (SPIFFE, X509-SVID, section 2: exactly one).
func shownBy(conn *tls.ConnectionState) string {
	if conn == nil || len(conn.VerifiedChains) == 0 {
		return ""
	}
	cert := conn.PeerCertificates[0]
	var ids []string
	for _, u := range cert.URIs {
		if u.Scheme == "spiffe" {
			ids = append(ids, u.String())
		}
	}
	names := 0
	for _, part := range cert.Subject.Names {
		if part.Type.Equal(commonName) {
			names++
		}
	}
	name := cert.Subject.CommonName
	switch {
	case len(ids) == 1:
		return ids[0]
	case len(ids) > 1 || names > 1:
		return ""
	}
	for _, kind := range []string{tokenName, subjectName, spiffeName} {
		if strings.HasPrefix(name, kind) {
			return ""
		}
	}
	return name
}

// commonName is id-at-commonName (RFC 5280, appendix A.1).
var commonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// Allow returns the refusal of a call, a method of gRPC or a path of HTTP, that no role of the
// identity permits; else nil. Calls that are not in the table are for operators.
func (p *Policy) Allow(i Identity, call string) error {
	if p == nil {
		return nil
	}
	may := RolesFor(call)
	if may == nil {
		may = []Role{Operator}
	}
	if slices.Equal(may, anybody) {
		return nil
	}
	for _, r := range i.Roles {
		if r == Operator || slices.Contains(may, r) {
			return nil
		}
	}
	has := fmt.Sprintf("has the roles %v", i.Roles)
	if len(i.Roles) == 0 {
		has = "has no role"
	}
	return refused(fmt.Sprintf("%s %s, and %s is for %v", i, has, call, may), fmt.Sprintf("give it a role in %s.identities, or call with another certificate or token", field))
}

// admits is Allow with two differences. The paths in probed are for everybody if the
// configuration says so, or if the connection is plain text, where nobody can identify
// itself. Over TLS, calls for anybody need some certificate or token.
func (p *Policy) admits(i Identity, conn *tls.ConnectionState, call string) error {
	if slices.Contains(probed, call) && (p.probes || conn == nil) {
		return nil
	}
	if err := p.Allow(i, call); err != nil {
		return err
	}
	if conn == nil || len(conn.VerifiedChains) > 0 || i.Name != "" || !slices.Equal(RolesFor(call), anybody) {
		return nil
	}
	return refused(fmt.Sprintf("%s is for who shows a certificate or a token", call), fmt.Sprintf("show one of them, or say %s.probes: true", field))
}

func refused(detail, wayOut string) error {
	return &millrace.Error{Reason: millrace.ReasonForbidden, Field: field, Detail: detail, WayOut: wayOut}
}

// identityKey is the key of an Identity in a context.
type identityKey struct{}

// With returns ctx with the identity of the caller.
func With(ctx context.Context, i Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, i)
}

// Who returns the identity of the caller in ctx. Without a policy it is the zero Identity,
// which may ask everything.
func Who(ctx context.Context) Identity {
	i, _ := ctx.Value(identityKey{}).(Identity)
	return i
}
