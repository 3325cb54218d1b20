// Package minicluster runs every role of Millrace in one process on loopback:
// Kafka, etcd, the partitioner, index nodes and a broker. `millrace demo` and
// `millrace dev` run it, and so do the tests of the system as a whole.
package minicluster
