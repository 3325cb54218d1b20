// Package millrace is the vocabulary of the Millrace feed index: the words
// that every role shares, each as a type of its own, so that a swapped
// argument is a compile error. It imports nothing of ours.
//
// A viewer follows entities. An entity's records of one content type are a
// timeline. The entity decides the partition, the partition decides the index
// nodes that hold its replicas. A feed is what one viewer should see now: the
// best records of the timelines the viewer follows.
//
// Design: fan-out-on-read after LinkedIn's FollowFeed
// (https://engineering.linkedin.com/blog/2016/03/followfeed--linkedin-s-feed-made-faster-and-smarter).
package millrace
