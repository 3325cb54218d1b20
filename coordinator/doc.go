// Package coordinator changes who hosts what without anybody noticing: it
// carries out plans of moves, and repairs what nodes that are gone leave behind.
//
// Two or more coordinators run, and one leads. A plan is a document in etcd, and
// what is done about it follows from the plan, the assignment and what nodes say
// of themselves, so that whoever leads goes on where another stopped. Everything
// that a leader writes is compared with its leadership in the same transaction.
// See DESIGN.md.
package coordinator
