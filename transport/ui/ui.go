// Package ui is the web interface: one page, the modules it loads, and nothing else.
//
// Contract. The files in assets are served as they are; there is no build step. The page asks this server's API and no other,
// with addresses relative to its own, so that it works below any prefix, its own or one that a proxy adds. What a screen shows
// is in the fragment of the address: reload, back and a copied link give the same screen.
//
// Life cycle. New reads the embedded files and starts nothing.
//
// Invariants:
//
//	U1  Only files of this package run: the policy sent with every file names 'self' alone and no inline code, and forbids that
//	    text becomes markup (Trusted Types). Names from labels are text.
//	U2  Reading a file changes nothing, and no link of the page leads to anything that does.
//	U3  A browser keeps no file without asking: each carries the hash of its content, and an unchanged one is not sent again.
package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed assets
var embedded embed.FS

const page = "index.html"

// policy is the Content-Security-Policy of every file (U1). Images may be data: for the icon alone.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// types are those of the files that are served. What is not listed is not served.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
}

// UI serves the page and its files.
type UI struct {
	files map[string]file // by path below assets
}

type file struct {
	content     []byte
	contentType string
	etag        string // weak: the bytes that are sent may be compressed
}

// New returns the interface.
func New() (*UI, error) {
	u := &UI{files: make(map[string]file)}
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || types[path.Ext(name)] == "" {
			return err
		}
		content, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		u.files[strings.TrimPrefix(name, "assets/")] = file{content, types[path.Ext(name)], `W/"` + hex.EncodeToString(sum[:16]) + `"`}
		return nil
	})
	if err == nil && u.files[page].content == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("ui: %w", err)
	}
	return u, nil
}

// Page serves the page itself.
func (u *UI) Page(w http.ResponseWriter, r *http.Request) { u.files[page].serve(w, r) }

// File serves the file that the path value "file" names; without a name it leads to the page.
func (u *UI) File(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	if name == "" {
		w.Header().Set("Location", "../") // relative: the path may have lost a prefix on its way here
		w.WriteHeader(http.StatusFound)
		return
	}
	f, ok := u.files[name]
	if !ok || name == page {
		http.NotFound(w, r)
		return
	}
	f.serve(w, r)
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // U3
	h.Set("ETag", f.etag)
	if strings.Contains(r.Header.Get("If-None-Match"), f.etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(f.content)))
	_, _ = w.Write(f.content) // a client that has left is told nothing
}
