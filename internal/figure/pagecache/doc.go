// Package pagecache has benchmarks read the disk, as after a disaster, and not what the
// system holds of it in memory.
package pagecache
