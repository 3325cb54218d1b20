// Package millrace has the terms that all roles of the Millrace feed index share, each as a
// type of its own, so that a swapped argument is a compile error. It imports no other package
// of Millrace.
//
// A viewer follows entities. An entity's records of one content type are a
// timeline. The entity decides the partition, and the partition decides the index
// nodes that hold its replicas. A feed is what one viewer should see now: the
// best records of the timelines that the viewer follows.
//
// A role is a kind of process. The partitioner sorts content into the log by partition, index
// nodes hold timelines and answer for their partitions, brokers answer callers by asking
// index nodes, and coordinators move replicas.
//
// Design: fan-out-on-read after LinkedIn's FollowFeed
// (https://engineering.linkedin.com/blog/2016/03/followfeed--linkedin-s-feed-made-faster-and-smarter).
package millrace
