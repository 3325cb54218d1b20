// Package minicluster runs every role of Millrace in one process on loopback:
// Kafka, etcd, the partitioner, index nodes and a broker. `millrace demo` and
// `millrace dev` are it, and so are the tests of the whole.
package minicluster
