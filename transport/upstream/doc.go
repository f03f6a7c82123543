// Package upstream hands whole query requests to an exact Prometheus and passes its answers on.
//
// Contract. Method, path, raw query and body go on as they came; so do Authorization and X-Scope-OrgID. An answer that is a
// Prometheus envelope is passed on byte for byte with its status, whatever it says. Anything else (a refused connection, a
// page of HTML, half an answer, a redirect, a hang) becomes an *Error that names the upstream without its credentials.
//
// Life cycle. New opens nothing; connections are made when needed, kept for a while, and closed by Close. A Client may be
// used from any goroutine.
//
// Invariants:
//
//	U1  What reaches the client as an answer is one complete JSON object with a status member.
//	U2  No credential of the upstream's URL and no header of a request stands in any message.
//	U3  An answer takes at most MaxResponseBytes of memory, before and after decompression, and Timeout of time; at most
//	    MaxInFlight requests are under way.
//	U4  No request goes to a host other than the configured one: redirects are not followed.
//	U5  After MaxFailures failures in a row nothing is sent for OpenFor, and the reason is told meanwhile; a client that
//	    gave up, or allowed less time than Timeout, is not a failure of the upstream.
package upstream
