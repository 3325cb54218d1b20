package permit

import "strings"

// table has, by gRPC method or HTTP path, the roles that may call it. A path that ends in /
// stands for all paths below it as well.
var table = map[string][]Role{
	"/millrace.feed.v1.FeedService/GetFeed": {Caller, Operator},
	"/millrace.feed.v1.FeedService/Why":     {Caller, Operator},
	"/v1/feed":                              {Caller, Operator},
	"/v1/why":                               {Caller, Operator},
	"/v1/openapi.json":                      known,

	"/millrace.node.v1.NodeService/Query":            {Broker, Operator},
	"/millrace.node.v1.NodeService/GetSchema":        {Broker, Operator},
	"/millrace.node.v1.NodeService/Hot":              {Node, Operator},
	"/millrace.node.v1.NodeService/ReadPartition":    {Node, Operator},
	"/millrace.node.v1.NodeService/Digests":          {Operator},
	"/millrace.node.v1.NodeService/CheckPartition":   {Operator},
	"/millrace.node.v1.NodeService/WitnessPartition": {Operator},
	"/millrace.node.v1.NodeService/CondemnPartition": {Operator},

	"/millrace.node.v1.AdminService/ReadTimeline":        {Operator},
	"/millrace.node.v1.AdminService/ReadHistory":         {Operator},
	"/millrace.node.v1.AdminService/FindRecords":         {Operator},
	"/millrace.node.v1.AdminService/DeleteRecords":       {Operator},
	"/millrace.node.v1.AdminService/DropCache":           {Operator},
	"/millrace.node.v1.AdminService/PauseIngest":         {Operator},
	"/millrace.node.v1.AdminService/ResumeIngest":        {Operator},
	"/millrace.node.v1.AdminService/ReplayDeadLetters":   {Operator},
	"/millrace.node.v1.AdminService/QuarantinePartition": {Operator},
	"/millrace.node.v1.AdminService/ReleasePartition":    {Operator},
	"/millrace.node.v1.AdminService/ReadState":           {Operator},
	"/millrace.node.v1.AdminService/CountDeadLetters":    {Operator},

	"/grpc.health.v1.Health/Check":                                   known,
	"/grpc.health.v1.Health/List":                                    known,
	"/grpc.health.v1.Health/Watch":                                   known,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {Caller, Operator},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {Caller, Operator},

	"/livez":               anybody,
	"/readyz":              anybody,
	"/metrics":             {Monitor, Operator},
	"/log":                 {Operator},
	"/debug/pprof/":        {Operator},
	"/debug/pprof/cmdline": {Operator},
	"/debug/pprof/profile": {Operator},
	"/debug/pprof/symbol":  {Operator},
	"/debug/pprof/trace":   {Operator},
}

// probed is the paths that the configuration can open to everybody: those that monitoring
// probes.
var probed = []string{"/livez", "/readyz", "/metrics"}

// RolesFor returns who may call a method or a path; nil if the table does not have it.
func RolesFor(call string) []Role {
	if may, ok := table[call]; ok {
		return may
	}
	for path, may := range table {
		if strings.HasSuffix(path, "/") && strings.HasPrefix(call, path) {
			return may
		}
	}
	return nil
}
