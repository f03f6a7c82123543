package log

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrPoisoned: a write or an fsync of the log failed; nothing more is acknowledged until the log is opened again.
	ErrPoisoned = errors.New("log is poisoned by a failed write")
	// ErrClosed: the log was closed, or Run has returned, before the event was accepted. It is not in the log.
	ErrClosed = errors.New("log is closed")
	// ErrTooLarge: an event is larger than Options.MaxEventBytes.
	ErrTooLarge = errors.New("event is too large")
	// ErrInvalid: a body breaks a rule of its type.
	ErrInvalid = errors.New("invalid event")
	// ErrDictionaryFull: more than maxFresh series were defined without an event that uses them.
	ErrDictionaryFull = errors.New("too many series wait for their first event")
	// ErrBusy: the log is being truncated; it will not be for long.
	ErrBusy = errors.New("log is being truncated")
	// ErrReadOnly: the log was opened with OpenReadOnly.
	ErrReadOnly = errors.New("log is open for reading only")

	// ErrLocked: another process has the directory open.
	ErrLocked = errors.New("in use by another process")
	// ErrNotALog: the directory holds something else.
	ErrNotALog = errors.New("not a tidemark log")
	// ErrRepairing: a repair was cut off while it exchanged the store. Repair goes on.
	ErrRepairing = errors.New("a repair was interrupted: run `tidemark log verify --repair` again")
	// ErrNewerFormat: the directory was written by a newer version.
	ErrNewerFormat = errors.New("log has a newer format than this version reads")
	// ErrNotWritable: the directory cannot be written.
	ErrNotWritable = errors.New("not writable")
	// ErrUnknownVersion and ErrUnknownKind: an event that this version cannot read. It is never skipped.
	ErrUnknownVersion = errors.New("unknown event version")
	ErrUnknownKind    = errors.New("unknown event kind")
)

// CorruptionError names the first damage found.
type CorruptionError struct {
	Seq    Seq // 0: the damage is outside of a single event
	Reason string
	Err    error // the cause, or nil
}

func (e *CorruptionError) Error() string {
	s := "log is damaged: " + e.Reason
	if e.Seq != 0 {
		s = fmt.Sprintf("log is damaged at sequence %d: %s", e.Seq, e.Reason)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *CorruptionError) Unwrap() error { return e.Err }

// UnknownEventError is an event of a version or kind that this program does not know.
type UnknownEventError struct {
	Seq     Seq
	Version uint8
	Kind    Kind
	Err     error // ErrUnknownVersion or ErrUnknownKind
}

func (e *UnknownEventError) Error() string {
	return fmt.Sprintf("sequence %d: %v (version %d, kind %d)", e.Seq, e.Err, e.Version, e.Kind)
}

func (e *UnknownEventError) Unwrap() error { return e.Err }

// ShortLogError: the log ends before something that was derived from it, so acknowledged events are missing.
type ShortLogError struct {
	Have Seq    // where the log ends
	Want Seq    // what it must reach
	What string // who says so
}

func (e *ShortLogError) Error() string {
	return fmt.Sprintf("log ends at sequence %d, but %s says %d: acknowledged events are missing", e.Have, e.What, e.Want)
}

func corrupt(seq Seq, format string, args ...any) *CorruptionError {
	return &CorruptionError{Seq: seq, Reason: fmt.Sprintf(format, args...)}
}

// lineError says on one line what its cause says on several: a start that is refused is read in a supervisor's log.
type lineError struct{ err error }

func (e lineError) Error() string { return strings.ReplaceAll(e.err.Error(), "\n", "; ") }
func (e lineError) Unwrap() error { return e.err }

func oneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	return lineError{err}
}
