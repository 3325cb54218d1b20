// Command millrace is every role and tool of the feed index in one binary.
package main

func main() {}
