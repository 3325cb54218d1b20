// Package minicluster runs a whole cluster in one process on loopback: Kafka, etcd, a
// partitioner, index nodes, a coordinator and a broker. `millrace demo` and
// `millrace dev` run it, and so do the tests of the system as a whole.
package minicluster
