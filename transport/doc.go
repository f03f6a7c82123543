// Package transport is the HTTP surface of Tidemark: it mounts the query API, the barrier, the status pages and the
// remote-write receiver on one handler, and holds what all of them share.
//
// Contract. Every path answers for the methods that it has and says which in Allow for any other; under /api/v1 every
// answer is JSON. Queries are refused with 503 until replay is done; everything else answers from the start.
//
// Life cycle. NewHandler starts nothing. The handler is given to Server, which sets the bounds of connections; whoever calls
// Serve also shuts it down.
//
// Invariants:
//
//	T1  Nothing that a client sends is held without a bound: header, body, connection age, idle time and the number of connections.
//	T2  An answer is compressed for exactly the clients that take gzip, and always says that it depends on Accept-Encoding.
//	T3  Without a configured origin no response invites scripts of other origins.
//	T4  Each request is counted once, under a fixed set of handler names.
//	T5  GET and HEAD change nothing. What changes something is refused to pages of other sites, invited to read or not.
//	T6  Each route names what it asks of who calls it, and nothing is mounted otherwise than through the guard that holds it.
package transport
