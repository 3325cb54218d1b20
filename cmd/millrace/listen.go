package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/internal/grpctune"
)

// loopbackOnly refuses an address that others could reach, where nothing
// would authenticate them.
func loopbackOnly(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is no host:port: %w", addr, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is reachable by others: give the role certificates (tls: cert, key, ca), or say insecure: true if the network is guarded by other means", addr)
}

// Security is how a role's ports and calls are protected. Without it a role
// listens on loopback only.
type Security struct {
	TLS struct {
		Cert string `yaml:"cert"` // PEM files of the role's certificate and key
		Key  string `yaml:"key"`
		CA   string `yaml:"ca"` // whose certificates callers and callees must show
	} `yaml:"tls"`
	Insecure bool `yaml:"insecure"` // listen anywhere without TLS
}

func (s *Security) config() (*tls.Config, error) {
	if s.TLS.Cert == "" && s.TLS.Key == "" && s.TLS.CA == "" {
		return nil, nil
	}
	if s.TLS.Cert == "" || s.TLS.Key == "" || s.TLS.CA == "" {
		return nil, errors.New("tls: cert, key and ca go together")
	}
	pair, err := tls.LoadX509KeyPair(s.TLS.Cert, s.TLS.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pem, err := os.ReadFile(s.TLS.CA)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls: %s holds no certificate", s.TLS.CA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2", "http/1.1"},
	}, nil
}

// listen listens on addr: with mutual TLS if there are certificates, else on
// loopback or as insecure.
func (s *Security) listen(addr string) (net.Listener, error) { return s.listenCapped(addr, 0, "") }

// listenCapped is listen, but that it takes so many connections at a time and
// tells others by refusal, if they speak plainly; 0: any number.
func (s *Security) listenCapped(addr string, conns int, refusal string) (net.Listener, error) {
	c, err := s.config()
	if err != nil {
		return nil, err
	}
	if c == nil && !s.Insecure {
		if err := loopbackOnly(addr); err != nil {
			return nil, err
		}
	}
	l, err := grpctune.Listen(addr)
	if err != nil {
		return nil, err
	}
	if c != nil {
		refusal = "" // it would have to be encrypted
	}
	if conns > 0 {
		l = intake.Cap(l, conns, refusal) // below TLS, whose handshake it bounds too
	}
	if c == nil {
		return l, nil
	}
	return tls.NewListener(l, c), nil
}

// dial is how the role calls others by gRPC.
func (s *Security) dial() (grpc.DialOption, error) {
	c, err := s.config()
	if err != nil {
		return nil, err
	}
	if c == nil {
		return grpc.WithTransportCredentials(insecure.NewCredentials()), nil
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(c)), nil
}
