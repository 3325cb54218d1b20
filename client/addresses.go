package client

import (
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// inTurn is the service configuration of gRPC by which calls go in turn to all brokers that
// can be reached. The client keeps a connection to each, so that when one broker stops, the
// next call goes to another at once.
const inTurn = `{"loadBalancingConfig":[{"round_robin":{}}]}`

// target returns the target that gRPC is to dial, and the options to dial it with. addr is
// one address, or several that are separated by commas.
func target(addr string) (string, []grpc.DialOption) {
	own := []grpc.DialOption{grpc.WithDefaultServiceConfig(inTurn)}
	if !strings.Contains(addr, ",") {
		return addr, own
	}
	var all addresses
	for a := range strings.SplitSeq(addr, ",") {
		all = append(all, strings.TrimSpace(a))
	}
	return all.Scheme() + ":///", append(own, grpc.WithResolvers(all))
}

// addresses are the addresses of the brokers of one client. They are a resolver that always
// finds exactly these.
type addresses []string

// Scheme implements resolver.Builder.
func (addresses) Scheme() string { return "millrace" }

// OverrideAuthority implements resolver.AuthorityOverrider. The target has no name of its
// own, so it takes the first address.
func (a addresses) OverrideAuthority(resolver.Target) string { return a[0] }

// Build implements resolver.Builder. The certificate of each broker is checked against the
// broker's own address.
func (a addresses) Build(_ resolver.Target, to resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	var found resolver.State
	for _, addr := range a {
		found.Addresses = append(found.Addresses, resolver.Address{Addr: addr, ServerName: addr})
	}
	return a, to.UpdateState(found)
}

// ResolveNow implements resolver.Resolver.
func (addresses) ResolveNow(resolver.ResolveNowOptions) {}

// Close implements resolver.Resolver.
func (addresses) Close() {}
