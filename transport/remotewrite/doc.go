// Package remotewrite is the door for data: it receives Prometheus Remote Write 1.0 and 2.0 over HTTP, checks it, and appends
// the good part of each request to the event log as one event.
//
// # Contract
//
// A 2xx is sent only after the event is durable. A request is one event or none: what is wrong with the request as a whole
// (its headers, size, compression or encoding) leaves nothing behind, and a bad series or sample is left out, counted and
// answered with 400 while the rest is logged. Duplicates, order and lateness are no concern here: only the fold can know
// them, so they are acknowledged. Every error that a sender is told stands in one table, answerTo.
//
// A request passes, in this order: method, Content-Type and Content-Encoding, declared size, rate limit, Gate, body within
// its bound, declared decompressed size, decompression, a check of the whole message (Check), its counts, then series by
// series the dictionary or, for those that it does not know, the label rules; at last Append and the answer.
//
// # Version 2.0
//
// Content-Type decides which message a body holds; nothing is guessed from the body. Labels and texts of 2.0 are references to
// a symbol table. They are followed series by series and written out as 1.0 has them, so that a series is one, whichever
// version names it; what all of them take when written out is bounded as a body of 1.0 is. A reference that leads nowhere
// refuses its series, as any other fault of a series does; a table whose first symbol is not empty refuses the request.
// Every answer to 2.0 says how many samples, histograms and exemplars were written, whatever its status.
//
// A series may have samples and histograms at once, or exemplars or metadata alone, as stock senders send them; one with
// nothing at all is refused. Metadata of a series describes the family of its metric. Start timestamps of samples are kept in
// the event, those of histograms too; the folds do not read them: increases are those of Prometheus' engine without them.
//
// # Life cycle
//
// New makes a Handler and starts nothing. A Handler has no goroutine and nothing to close; it may be used by many
// goroutines. SeedMetadata is called while the log is replayed.
//
// # Invariants
//
//   - R1: nothing happens before the whole message is known to be well formed. What Check and Check2 accept, the generated decoders of
//     Prometheus accept with the same content. They are stricter in four points: they refuse groups, varints beyond 64
//     bits, field numbers beyond 29 bits, and packed elements that do not end with their field; and a reference of more than
//     32 bits leads nowhere, where the generated decoder cuts it off.
//   - R2: the bytes by which the dictionary finds a series depend on its labels and their order alone.
//   - R3: a scan allocates nothing per sample or series; a request of known series allocates only its event.
//   - R4: a request leaves at most one event, and none if it is refused as a whole; only after a failed append (503) is it
//     unknown whether the event is there, and the sender repeats it.
//   - R5: for samples, histograms and exemplars each: received = rejected + logged, per request and per process.
//   - R6: memory is taken from the in-flight bound before it is allocated, and nobody waits for it. No client gets all of it.
//   - R7: 5xx means that the same request may succeed later; 429 is never sent, since stock senders drop data on it.
//   - R8: only what a durable event says is remembered of metadata.
//
// Samples and histograms beyond the bounds of time, and native histograms that the model of Prometheus calls invalid, are
// refused and answered with 400. A bad exemplar or metadata entry is
// refused and counted too, but never makes a request fail.
package remotewrite
