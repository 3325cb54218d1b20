package permit

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
	strictjson "github.com/go-jose/go-jose/v4/json"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/secure"
)

// parsed is the value of a file, which is parsed again when the file changes. If the file
// then cannot be read or parsed, that is logged, and the value stays as it is. An empty file
// gives a value that knows nobody.
type parsed[T any] struct {
	source *secure.Source    // the file
	good   atomic.Pointer[T] // the value of the last text that could be parsed
}

// open reads and parses a file. key is the file's key in the configuration, below field. The
// error says why the file cannot be read or parsed now.
func open[T any](file, key string, log *slog.Logger, parse func(string) (T, error)) (*parsed[T], error) {
	if log == nil {
		log = slog.Default()
	}
	p := &parsed[T]{}
	var err error
	p.source, err = secure.OpenText(file, field+"."+key, log, func(text string) error {
		next, err := parse(text)
		if err != nil {
			return err
		}
		p.good.Store(&next)
		if text == "" {
			log.Warn("a file is empty: nobody is known by it", "field", field+"."+key)
		}
		return nil
	})
	return p, err
}

// current returns the value of the file as it is now, or the last good one.
func (p *parsed[T]) current() T {
	p.source.Current()
	return *p.good.Load()
}

// tokens is the names of tokens, by the tokens' hashes. So the time of a look-up tells nothing
// about the tokens that there are.
type tokens struct {
	*parsed[map[[sha256.Size]byte]string]
}

func openTokens(file string, log *slog.Logger) (*tokens, error) {
	names, err := open(file, "tokens", log, parseTokens)
	if err != nil {
		return nil, err
	}
	return &tokens{names}, nil
}

// minTokenBytes is the least length of a token; a shorter one could be guessed.
const minTokenBytes = 16

// parseTokens parses a file of tokens: a name, a space and the token in each line. Empty
// lines and lines that begin with # are skipped. Errors never quote a line.
func parseTokens(text string) (map[[sha256.Size]byte]string, error) {
	names := map[[sha256.Size]byte]string{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, token, ok := strings.Cut(line, " ")
		token = strings.TrimSpace(token)
		switch hash := sha256.Sum256([]byte(token)); {
		case !ok || strings.Contains(token, " "):
			return nil, fmt.Errorf("line %d is no name and token with a space between", i+1)
		case len(token) < minTokenBytes:
			return nil, fmt.Errorf("line %d: the token has less than %d bytes", i+1, minTokenBytes) // the name is not quoted: it may be the token by mistake
		case names[hash] != "":
			return nil, fmt.Errorf("line %d has the token of a line before", i+1)
		default:
			names[hash] = name
		}
	}
	return names, nil
}

// name returns the name of a token; ok is false if it is not known. t may be nil.
func (t *tokens) name(token string) (string, bool) {
	if t == nil {
		return "", false
	}
	name, ok := t.current()[sha256.Sum256([]byte(token))]
	return name, ok
}

// JWT says which signed tokens are believed.
type JWT struct {
	JWKS     string `yaml:"jwks,omitempty" form:"file or URL" doc:"a JSON Web Key Set of the public keys that sign tokens: a file, read again when it changes, of which an empty one knows nobody; or an https URL, read again every five minutes and when a token names another key. Who calls is jwt: and the subject of the token"`
	Issuer   string `yaml:"issuer,omitempty" doc:"the issuer that a token must have"`
	Audience string `yaml:"audience,omitempty" doc:"whom a token must be for"`
}

// algorithms is the signature algorithms that are taken: those with a public key, so that the
// verifier cannot sign.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// verifier verifies signed tokens.
type verifier struct {
	of   JWT
	keys signingKeys
}

// signingKeys is a set of public keys that may change.
type signingKeys interface {
	// current returns the keys as they are now, never nil.
	current() *jose.JSONWebKeySet
	// lacks notes that no key could have signed a token, so that the set may be out of date.
	lacks()
	// away reports whether no keys could be read yet, so that nothing can be said of a token.
	away() bool
}

// keyFile is the keys of a file, which is read again as soon as it changes.
type keyFile struct {
	*parsed[*jose.JSONWebKeySet]
}

// lacks implements signingKeys. It does nothing.
func (keyFile) lacks() {}

// away implements signingKeys. The file was read when it was opened.
func (keyFile) away() bool { return false }

// open checks the configuration, and opens its keys. Keys of a URL are fetched later.
func (j JWT) open(log *slog.Logger) (*verifier, error) {
	switch "" {
	case j.JWKS:
		return nil, invalid("jwt.jwks", "nothing says which keys sign tokens", "name a file or an https URL of a JSON Web Key Set")
	case j.Issuer:
		return nil, invalid("jwt.issuer", "nothing says who issues tokens", "give the iss that they have")
	case j.Audience:
		return nil, invalid("jwt.audience", "nothing says whom tokens are for: one for another service would be believed", "give the aud that they have")
	}
	log = cmp.Or(log, slog.Default())
	if strings.Contains(j.JWKS, "://") {
		keys, err := keysAt(j.JWKS, log)
		return &verifier{j, keys}, err
	}
	keys, err := open(j.JWKS, "jwt.jwks", log, func(text string) (*jose.JSONWebKeySet, error) { return parseKeys(text, log) })
	return &verifier{j, keyFile{keys}}, err
}

// parseKeys parses a JSON Web Key Set. An empty text and an empty list of keys give a set
// without keys. The error refuses a text that is no key set, a key that is malformed or
// secret, and a set of which no key can be used. Other keys that cannot be used, such as
// those of an unknown kind, are passed over and logged, as RFC 7517 says: an issuer may
// publish keys that not all readers of the set know yet.
func parseKeys(text string, log *slog.Logger) (*jose.JSONWebKeySet, error) {
	keys := new(jose.JSONWebKeySet)
	if text == "" {
		return keys, nil
	}
	var set struct {
		Keys []strictjson.RawMessage `json:"keys"`
	}
	if err := strictjson.Unmarshal([]byte(text), &set); err != nil { // strictjson refuses a second list "keys", by which some readers would go
		return nil, err
	}
	if set.Keys == nil {
		return nil, errors.New("it is no key set: it has no keys, and not an empty list of them")
	}
	var over []string
	for i, raw := range set.Keys {
		k, why, err := parseKey(json.RawMessage(raw))
		switch {
		case err != nil:
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		case why != "":
			over = append(over, fmt.Sprintf("%.100q: %s", k.KeyID, why))
		default:
			keys.Keys = append(keys.Keys, k)
		}
	}
	if len(over) == 0 {
		return keys, nil
	}
	if len(keys.Keys) == 0 {
		return nil, fmt.Errorf("none of its %d keys is of use: %s", len(over), strings.Join(over[:min(len(over), maxTold)], "; "))
	}
	log.Warn("keys of a set are passed over: tokens that they sign are not believed", "field", field+".jwt.jwks", "keys", over[:min(len(over), maxTold)], "all", len(over))
	return keys, nil
}

// maxTold is how many of the keys that are passed over are named, with the reason.
const maxTold = 10

// parseKey parses a key of a set. over says why the key is passed over; "": it is used. The
// error says that the key is malformed or secret.
func parseKey(raw json.RawMessage) (k jose.JSONWebKey, over string, err error) {
	var is struct {
		ID     string          `json:"kid"`
		Kind   string          `json:"kty"`
		Curve  string          `json:"crv"`
		Use    string          `json:"use"`
		Signs  string          `json:"alg"`
		Does   []string        `json:"key_ops"`
		Secret json.RawMessage `json:"d"`
		Shared json.RawMessage `json:"k"`
	}
	if err := json.Unmarshal(raw, &is); err != nil {
		return k, "", err
	}
	if is.Secret != nil || is.Shared != nil {
		return k, "", fmt.Errorf("the key %q is secret: whoever reads the file could sign", is.ID)
	}
	k.KeyID = is.ID
	switch {
	case is.Use == "enc":
		return k, "it is for encryption", nil
	case is.Use != "" && is.Use != "sig":
		return k, fmt.Sprintf("it is for the use %.40q", is.Use), nil
	case is.Does != nil && !slices.Contains(is.Does, "verify"):
		return k, fmt.Sprintf("it is for %.100q", is.Does), nil
	case is.Signs != "" && !slices.Contains(algorithms, jose.SignatureAlgorithm(is.Signs)):
		return k, fmt.Sprintf("the algorithm %.40q signs no tokens that are taken", is.Signs), nil
	}
	if is.Kind == "EC" && !slices.Contains([]string{"P-256", "P-384", "P-521"}, is.Curve) {
		return k, fmt.Sprintf("the curve %.40q is not known", is.Curve), nil
	}
	err = k.UnmarshalJSON(raw)
	switch {
	case errors.Is(err, jose.ErrUnsupportedKeyType):
		k.KeyID = is.ID
		return k, fmt.Sprintf("keys of kind %.40q are not known", is.Kind), nil
	case err == nil && !k.IsPublic():
		err = fmt.Errorf("the key %q is not public", is.ID)
	}
	if of, ok := k.Key.(*rsa.PublicKey); ok && err == nil {
		if of.N.BitLen() > maxKeyBits {
			return k, fmt.Sprintf("its %d bits take too long to verify a token", of.N.BitLen()), nil
		}
		err = possible(of)
	}
	return k, "", err
}

// possible refuses an RSA key that can verify nothing, because its modulus or exponent is
// not valid, or it is too short.
func possible(k *rsa.PublicKey) error {
	var digest [sha256.Size]byte
	if err := rsa.VerifyPKCS1v15(k, crypto.SHA256, digest[:], make([]byte, k.Size())); !errors.Is(err, rsa.ErrVerification) {
		return fmt.Errorf("the key verifies nothing: %w", err)
	}
	return nil
}

// maxKeyBits bounds RSA keys, as crypto/tls does. Verification with a larger key takes long,
// and any caller could cause it.
const maxKeyBits = 8192

// maxTokenBytes bounds a token before it is parsed.
const maxTokenBytes = 8 << 10

// maxTries bounds how many keys are tried for a token: each takes CPU time, and everybody
// who reaches the port may send tokens.
const maxTries = 16

// candidates returns the keys that may have signed a token. of is the token's header. The
// keys are those with the key id and the algorithm that the header names. A key without an
// id fits every token, and a token without a key id fits every key. The error says that
// there are none, or more than maxTries.
func candidates(set *jose.JSONWebKeySet, of jose.Header) (keys []jose.JSONWebKey, err error) {
	for _, k := range set.Keys {
		if (of.KeyID == "" || k.KeyID == "" || k.KeyID == of.KeyID) && signs(k, jose.SignatureAlgorithm(of.Algorithm)) {
			keys = append(keys, k)
		}
	}
	switch {
	case len(keys) == 0:
		return nil, fmt.Errorf("no key of the set is named %.100q and signs by %s", of.KeyID, of.Algorithm)
	case len(keys) > maxTries:
		return nil, fmt.Errorf("%d keys of the set may be that of %.100q, and %d are tried at most", len(keys), of.KeyID, maxTries)
	}
	return keys, nil
}

// signs reports whether a key is for an algorithm.
func signs(k jose.JSONWebKey, by jose.SignatureAlgorithm) bool {
	if k.Algorithm != "" && k.Algorithm != string(by) {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(string(by), "RS") || strings.HasPrefix(string(by), "PS")
	case *ecdsa.PublicKey:
		return key.Curve == map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384(), jose.ES512: elliptic.P521()}[by]
	case ed25519.PublicKey:
		return by == jose.EdDSA
	}
	return false
}

// name returns the subject of a token. The error refuses a token that no key has signed, of
// another issuer or audience, that has expired or never expires, or without a subject. If no
// keys could be read yet, it is UNAVAILABLE instead.
func (v *verifier) name(token string) (string, error) {
	bad := func(err error) error {
		return refused(fmt.Sprintf("the bearer token is not believed: %v", err), fmt.Sprintf("send one of %s for %s that has not ended", v.of.Issuer, v.of.Audience))
	}
	if len(token) > maxTokenBytes {
		return "", bad(fmt.Errorf("it has %d bytes", len(token)))
	}
	signed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return "", bad(err)
	}
	var claims jwt.Claims
	keys, err := candidates(v.keys.current(), signed.Headers[0])
	if err != nil {
		v.keys.lacks()
		if v.keys.away() {
			return "", &millrace.Error{
				Reason: millrace.ReasonUnavailable, Field: field, Detail: "the keys that sign tokens could not be read yet",
				WayOut: "try again after a pause, or with a certificate",
			}
		}
		return "", bad(err)
	}
	for _, k := range keys {
		if err = signed.Claims(k.Key, &claims); err == nil {
			break
		}
	}
	if err != nil {
		return "", bad(err)
	}
	if claims.Expiry == nil {
		return "", bad(errors.New("it never ends"))
	}
	if err := claims.Validate(jwt.Expected{Issuer: v.of.Issuer, AnyAudience: jwt.Audience{v.of.Audience}}); err != nil {
		return "", bad(err)
	}
	if claims.Subject == "" {
		return "", bad(errors.New("it is of nobody"))
	}
	return claims.Subject, nil
}
