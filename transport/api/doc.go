// Package api speaks the Prometheus HTTP API, byte for byte, in front of an Engine, and the few endpoints of Tidemark's own.
//
// Contract. Parameters are read as Prometheus 3 reads them, errors carry its envelope, types and status codes, and a result
// is encoded exactly as its encoder writes it. What the engine cannot answer (*query.MissError) goes whole to the upstream,
// if there is one, else it is an error with the reason in it: never an empty success.
//
// Life cycle. New starts nothing and keeps no state besides its collaborators; every handler may be called
// from any goroutine. Whatever a request needs beyond its own goroutine is owned by the collaborators.
//
// Invariants:
//
//	H1  Every answer under /api/v1 that has a body is JSON, also for an unknown path, a wrong method and a failure of the upstream.
//	H2  A request that is refused with 4xx changed nothing: the barrier is called only after all parameters have been read.
//	H3  Bodies, forms and lists are bounded by the named constants of this package.
//	H4  A success tells in its headers by which route it came, which log position it reflects and what barriers proved.
//	H5  An answer starts only when it cannot fail any more: the status of a response is never corrected by its body.
package api
