// Package confluent fetches schemas by id from a schema registry that speaks Confluent's
// protocol.
package confluent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Access is how a schema registry is reached: TLS, and the user and password for HTTP basic
// authentication. With the zero value, an http URL must be on loopback, and an https URL
// is trusted by the authorities that the machine trusts.
type Access struct {
	TLS          secure.TLS `yaml:"tls,omitempty"`
	secure.Login `yaml:",inline"`
	Insecure     bool `yaml:"insecure,omitempty" doc:"true: plain text beyond loopback, where other means guard the network"`
}

// registryField is the configuration key of an Access.
const registryField = "connect.schema_registry"

// Registry returns a look-up of schemas by id in the registry at a URL, for values in
// Confluent's framing. The look-up's error is a [schemas.Error] (UnknownSchema) if asking
// again cannot help: the registry lacks the id, or Millrace does not take its schema. Any
// other error may be gone at the next try.
func (a Access) Registry(at string, log *slog.Logger) (registry.Lookup, error) {
	transport, err := a.transport(at, log)
	if err != nil {
		return nil, err
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // another server must not get the password
	cl, err := sr.NewClient(sr.URLs(at), sr.HTTPClient(&http.Client{Timeout: 5 * time.Second, Transport: bounded{transport}, CheckRedirect: stay}))
	if err != nil {
		return nil, fmt.Errorf("kafka: schema registry %s: %w", at, err)
	}
	return func(ctx context.Context, id uint32) (*schemas.Schema, error) {
		if id > math.MaxInt32 {
			return nil, unknownID(id, "a registry's ids are positive 32-bit integers")
		}
		s, err := cl.SchemaByID(ctx, int(id))
		var answer *sr.ResponseError
		switch {
		case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
			return nil, unknownID(id, answer.Message)
		case errors.Is(err, errLong):
			return nil, unknownID(id, errLong.Error())
		case err != nil:
			return nil, fmt.Errorf("kafka: schema registry: id %d: %w", id, refusedByRegistry(err, answer))
		case s.Type != sr.TypeAvro || len(s.References) > 0:
			return nil, unknownID(id, "it is not a self-contained Avro schema")
		}
		parsed, err := schemas.Parse([]byte(s.Schema))
		if err != nil { // the registry did answer, and will say the same again
			return nil, unknownID(id, "Millrace does not take its schema: "+err.Error())
		}
		return parsed, nil
	}, nil
}

func unknownID(id uint32, why string) error {
	return &schemas.Error{Reason: schemas.UnknownSchema, Detail: fmt.Sprintf("schema registry: id %d: %s", id, why)}
}

// refusedByRegistry turns an error that the configuration causes, of TLS or of the login,
// into a [millrace.Error] for its key. It returns any other error as it is.
func refusedByRegistry(err error, answer *sr.ResponseError) error {
	field, wayOut := registryField+".tls", secure.Refused(err)
	if answer != nil && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden) {
		field, wayOut = registryField+".username", "correct the user or the password, or give the user the right to read schemas"
	}
	if wayOut == "" {
		return err
	}
	return &millrace.Error{Reason: millrace.ReasonForbidden, Field: field, Detail: err.Error(), WayOut: wayOut}
}

// transport returns the transport of requests to the URL at, with TLS and the login. The
// error refuses a wrong URL or configuration.
func (a Access) transport(at string, log *slog.Logger) (http.RoundTripper, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "schema_registry", Detail: fmt.Sprintf("%.200q is no URL of HTTP", at), WayOut: "write it as https://registry:8081"}
	}
	if u.User != nil { // it would be in every error and log
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "schema_registry", Detail: "the URL has a user or a password in it", WayOut: "take them out, and give " + registryField + ".username and password_file"}
	}
	t := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}
	if u.Scheme == "http" {
		if a.TLS.On() {
			return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: registryField + ".tls", Detail: at + " is a URL of plain text", WayOut: "write it as https://, or leave tls out"}
		}
		addr := u.Host
		if u.Port() == "" {
			addr = net.JoinHostPort(u.Hostname(), "80")
		}
		plain := secure.Plain{Field: registryField, Insecure: a.Insecure}
		t.DialContext = plain.Dial
		if err := plain.Check(addr); err != nil {
			return nil, err
		}
	} else {
		if !a.TLS.On() {
			a.TLS.CA = secure.SystemCA
		}
		files, err := secure.Open(a.TLS, registryField+".tls", log)
		if err != nil {
			return nil, err
		}
		t.DialTLSContext = files.Dial
	}
	if !a.Login.On() {
		return t, nil
	}
	password, err := a.Login.Open(registryField, log)
	if err != nil {
		return nil, err
	}
	return basicAuth{t, a.Username, password}, nil
}

// maxAnswerBytes bounds an answer of the registry. The answer with the largest schema that
// Millrace takes is smaller.
const maxAnswerBytes = 1 << 20

var errLong = fmt.Errorf("the answer has more than %d bytes", maxAnswerBytes)

// bounded is a transport whose answers fail with errLong after maxAnswerBytes.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = secure.Bounded(resp.Body, maxAnswerBytes, errLong)
	}
	return resp, err
}

// basicAuth is a transport that sends a user and the password, as its file has it now.
type basicAuth struct {
	http.RoundTripper
	user     string
	password *secure.Source
}

// RoundTrip implements http.RoundTripper.
func (b basicAuth) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth(b.user, b.password.Current())
	return b.RoundTripper.RoundTrip(r)
}
