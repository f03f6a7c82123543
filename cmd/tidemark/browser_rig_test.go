package main

// A real browser, driven over its debugging protocol, in front of a real service.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// requireChromium leaves the test out where there is no browser, and says what to install; with REQUIRE_PEERS=1 that is a failure.
func requireChromium(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err == nil {
		return path
	}
	if os.Getenv("REQUIRE_PEERS") != "" {
		t.Fatalf("REQUIRE_PEERS is set, and %v", err)
	}
	t.Skipf("LEFT OUT: the web interface is not walked in a browser, because %v; to run it: apt-get install chromium", err)
	return ""
}

// browser is one tab, and what it has complained of.
type browser struct {
	t    *testing.T
	ctx  context.Context
	base string // with a slash at its end
	out  string // directory of the screenshots

	mu         sync.Mutex
	complaints []string
}

// violations are collected by the page itself: what the policy stops shows in no other way.
const watchPolicy = `globalThis.violations = []; addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sample));`

// openBrowser opens a tab of a browser that ends with the test.
func openBrowser(t *testing.T, base string) *browser {
	t.Helper()
	path := requireChromium(t)
	out := os.Getenv("TIDEMARK_SCREENSHOTS")
	if out == "" {
		out = t.TempDir()
	} else if err := os.MkdirAll(out, 0o750); err != nil {
		t.Fatal(err)
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(patience))
	alloc, endAlloc := chromedp.NewExecAllocator(context.Background(), opts...)
	b := &browser{t: t, base: base, out: out}
	ctx, endTab := chromedp.NewContext(alloc, chromedp.WithListener(b.hear))
	b.ctx = ctx
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // the browser may have ended by itself
		endTab()
		endAlloc()
	})
	// The browser lives as long as the context of the first call.
	if _, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watchPolicy}); err != nil {
		t.Fatal(err)
	}
	b.look("light", 1280)
	return b
}

// hear notes what must not happen: dialogs, exceptions, errors on the console. A request that was answered with an error is
// no fault of the page.
func (b *browser) hear(event any) {
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		b.complain("dialog: %s", e.Message)
		go func() { // events are heard where nothing may wait
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}()
	case *cdpruntime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
		b.complain("exception: %s", text)
	case *cdpruntime.EventConsoleAPICalled:
		if e.Type == cdpruntime.ConsoleAPICalledTypeError || e.Type == cdpruntime.ConsoleAPICalledTypeWarning {
			for _, a := range e.Args {
				b.complain("console: %s %s", a.Value, a.Description)
			}
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError && e.Entry.Source != cdplog.EntrySourceNetwork {
			b.complain("%s: %s", e.Entry.Source, e.Entry.Text)
		}
	}
}

func (b *browser) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, fmt.Sprintf(format, args...))
}

// quiet fails the test if there was anything to complain of.
func (b *browser) quiet() {
	b.t.Helper()
	violations := valueOf[[]string](b, `globalThis.violations || []`)
	b.mu.Lock()
	defer b.mu.Unlock()
	if all := append(violations, b.complaints...); len(all) > 0 {
		b.t.Errorf("the browser complains:\n%s", strings.Join(all, "\n"))
	}
	b.complaints = nil
}

// perform runs an action, which must succeed, and returns its value.
func perform[T any](b *browser, what string, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.shot("failed")
		b.t.Fatalf("%s: %v", what, err)
	}
	return v
}

// valueOf evaluates an expression in the page, a promise to its end.
func valueOf[T any](b *browser, expr string) T {
	b.t.Helper()
	return perform(b, expr, chromedp.Evaluate[T](expr, chromedp.EvalAwaitPromise))
}

// do evaluates an expression for its effect.
func (b *browser) do(expr string) {
	b.t.Helper()
	_ = valueOf[bool](b, "("+expr+", true)")
}

// look sets the colour scheme that the system prefers, and the width of the window.
func (b *browser) look(scheme string, width int64) {
	b.t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		b.t.Fatal(err)
	}
	perform(b, "size", chromedp.EmulateViewport(width, 900))
}

// open goes to a screen, given as the fragment of its address.
func (b *browser) open(fragment string) {
	b.t.Helper()
	perform(b, "leave", chromedp.Navigate("about:blank")) // another fragment alone would load nothing
	perform(b, "open "+fragment, chromedp.Navigate(b.base+fragment))
}

// until waits until an expression is true in the page.
func (b *browser) until(what, expr string) {
	b.t.Helper()
	poll(b.t, patience, what, func() (bool, string) {
		yes, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+expr+")"))
		if err != nil || yes {
			return yes, fmt.Sprint(err)
		}
		text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`location.hash + ' ' + [...document.querySelectorAll('textarea, input')].map((e) => JSON.stringify(e.value)).join(' ') + ' ' + document.body.innerText.slice(0, 3000)`))
		return false, text
	})
}

// says waits until the page's text has all the pieces in it.
func (b *browser) says(pieces ...string) {
	b.t.Helper()
	for _, p := range pieces {
		b.until(fmt.Sprintf("says %q", p), fmt.Sprintf("document.body.innerText.includes(%q)", p))
	}
}

// press clicks the button, link or label that says text, in its first line, inside the first element that matches where.
func (b *browser) press(where, text string) {
	b.t.Helper()
	find := fmt.Sprintf(`(() => {
	  const all = [...(document.querySelector(%q) || document.createElement('i')).querySelectorAll('button, a, label, summary')];
	  return all.find((e) => !e.disabled && (e.innerText.trim().split('\n')[0] === %[2]q || e.getAttribute('aria-label') === %[2]q));
	})()`, where, text)
	b.until("there is a "+text, find)
	b.do(find + ".click()")
}

// keys types into what has the focus.
func (b *browser) keys(keys string) {
	b.t.Helper()
	perform(b, "keys", chromedp.KeyEvent(keys))
}

// strike presses one key as a keyboard does: the text comes with the key, so that a page which takes the key gets no text.
func (b *browser) strike(key, text string, code int64) {
	b.t.Helper()
	down := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: key, Text: text, WindowsVirtualKeyCode: code}
	up := down
	up.Type, up.Text = input.DispatchKeyEventTypeKeyUp, ""
	for _, e := range []input.DispatchKeyEventParams{down, up} {
		if _, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, e); err != nil {
			b.t.Fatal(err)
		}
	}
}

// fill replaces the text of an input, as a person would.
func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.until("there is "+selector, fmt.Sprintf("document.querySelector(%q)", selector))
	b.do(fmt.Sprintf("document.querySelector(%[1]q).focus(), document.querySelector(%[1]q).select()", selector))
	if text == "" {
		text = kb.Delete
	}
	b.keys(text)
}

// shot leaves a picture of the whole page.
func (b *browser) shot(name string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Logf("screenshot %s: %v", name, err)
		return
	}
	if err := os.WriteFile(filepath.Join(b.out, name+".png"), png, 0o600); err != nil {
		b.t.Error(err)
	}
}

// shots leaves pictures in both schemes and in two widths, none of which may be wider than the window; one picture where nobody
// has asked for them, because they take most of a test's time.
func (b *browser) shots(name string) {
	b.t.Helper()
	for _, l := range []struct {
		scheme string
		width  int64
	}{{"light", 600}, {"dark", 1280}, {"light", 1280}} {
		b.look(l.scheme, l.width)
		b.until(fmt.Sprintf("%s fits into a window of %d", name, l.width), `document.documentElement.scrollWidth <= document.documentElement.clientWidth`)
		if os.Getenv("TIDEMARK_SCREENSHOTS") != "" || l.scheme == "dark" {
			b.shot(fmt.Sprintf("%s-%s-%d", name, l.scheme, l.width))
		}
	}
}
