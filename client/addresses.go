package client

import (
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// inTurn has calls go to all brokers in turn, as far as they can be reached. A
// connection to each is kept, so that where one broker stops the next call goes
// to another at once.
const inTurn = `{"loadBalancingConfig":[{"round_robin":{}}]}`

// target returns what gRPC is to dial for one address, or for several that are
// separated by commas, and with which options.
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

// addresses are the brokers of one client, as a resolver that always finds them.
type addresses []string

// Scheme implements resolver.Builder.
func (addresses) Scheme() string { return "millrace" }

// OverrideAuthority implements resolver.AuthorityOverrider: the target has no
// name of its own.
func (a addresses) OverrideAuthority(resolver.Target) string { return a[0] }

// Build implements resolver.Builder. A broker's certificate is for its own
// address.
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
