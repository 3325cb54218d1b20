// Package pagecache removes files from the system's page cache, so that benchmarks read them
// from the disk, as after a restart of the machine.
package pagecache
