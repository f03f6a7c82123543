// Package log is the durable, ordered sequence of everything that Tidemark was told: the only truth, from which all else is folded.
package log
