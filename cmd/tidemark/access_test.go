package main

// Who gets in, and to what, with real TLS and real users.

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	n    int64
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir, pool: x509.NewCertPool()}
	a.cert, a.key = a.sign("test authority", true)
	a.pool.AddCert(a.cert)
	return a
}

// sign makes a certificate and writes it with its key to name.crt and name.key.
func (a *authority) sign(name string, ca bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.n), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if ca {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, key
}

// client returns an HTTP client that trusts the authority and shows a certificate, if one is named.
func (a *authority) client(name string) *http.Client {
	a.t.Helper()
	cfg := &tls.Config{RootCAs: a.pool}
	if name != "" {
		cert, err := tls.LoadX509KeyPair(filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key"))
		if err != nil {
			a.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	a.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (s *site) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// secured starts a service with TLS and waits until it answers.
func (s *site) secured(client *http.Client, user string, args ...string) *process {
	s.t.Helper()
	p := s.serve(append([]string{"--web.config.file=web.yml"}, args...)...)
	poll(s.t, readyWithin, "ready over TLS", func() (bool, string) {
		select {
		case <-p.exited:
			s.t.Fatalf("ended with %d: %s", p.cmd.ProcessState.ExitCode(), p.out.String())
		default:
		}
		code, err := ask(client, http.MethodGet, "https://"+s.addr+"/-/ready", user)
		return code == http.StatusOK, fmt.Sprint(code, err)
	})
	return p
}

// ask sends a request; the password of a user is its name with -secret behind it.
func ask(c *http.Client, method, url, user string) (int, error) {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return 0, err
	}
	if user != "" {
		req.SetBasicAuth(user, user+"-secret")
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// mountedRoutes reads the list of routes that transport's own test holds to be complete: pattern, method, permission.
func mountedRoutes(t *testing.T) [][3]string {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "transport", "testdata", "routes.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out [][3]string
	for in := bufio.NewScanner(f); in.Scan(); {
		out = append(out, [3]string(strings.Fields(in.Text())))
	}
	if len(out) < 40 {
		t.Fatalf("%d routes", len(out))
	}
	return out
}

// TestEveryRouteWithEveryUser walks all routes of a service behind TLS and passwords: with nobody, with a wrong password, with a user
// who may do nothing, and with a reader, a writer and an admin. Exactly the permitted ones answer. No secret is in what it says
// or shows.
func TestEveryRouteWithEveryUser(t *testing.T) {
	s := newSite(t, `
exact: {upstream: "http://upstream-user:upstream-secret@127.0.0.1:1", http_config_file: upstream.yml, local: true}
access:
  reader: [read]
  writer: [write]
  producer: [read, write]
  ops: [admin]
`, "--web.enable-admin-api", "--web.enable-lifecycle")
	ca := newAuthority(t, s.dir)
	ca.sign("server", false)
	s.file("password", "file-secret")
	s.file("upstream.yml", "authorization: {type: Bearer, credentials_file: password}\n")
	web := "tls_server_config: {cert_file: server.crt, key_file: server.key}\nhttp_server_config: {http2: true, headers: {Strict-Transport-Security: max-age=31536000}}\nbasic_auth_users:\n"
	users := []string{"reader", "writer", "producer", "ops", "stranger"}
	for _, u := range users {
		hash, err := bcrypt.GenerateFromPassword([]byte(u+"-secret"), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		web += fmt.Sprintf("  %s: %q\n", u, hash)
	}
	s.file("web.yml", web)
	client := ca.client("")
	p := s.secured(client, "ops")
	may := map[string][]string{"reader": {"read"}, "writer": {"write"}, "producer": {"read", "write"}, "ops": {"read", "write", "admin"}}
	asked := 0
	for _, r := range mountedRoutes(t) {
		url := "https://" + s.addr + strings.NewReplacer("{$}", "", "{file...}", "app.js", "{name}", "x", "{id}", "x").Replace(r[0])
		if strings.HasPrefix(r[0], "/debug/pprof/") {
			url += "?seconds=1"
		}
		for _, user := range append(users, "", "nobody") {
			if user == "ops" && (strings.HasSuffix(r[0], "/profile") || strings.HasSuffix(r[0], "/drain")) {
				continue // one takes a second, the other seals the input
			}
			code, err := ask(client, r[1], url, user)
			if err != nil {
				t.Fatalf("%s %s as %q: %v", r[1], r[0], user, err)
			}
			asked++
			permitted := r[2] == "anyone"
			for _, m := range may[user] {
				permitted = permitted || m == r[2]
			}
			switch {
			case user == "" || user == "nobody":
				if code != http.StatusUnauthorized {
					t.Errorf("%s %s without a user: %d", r[1], r[0], code)
				}
			case permitted == (code == http.StatusForbidden), code == http.StatusUnauthorized:
				t.Errorf("%s %s asks for %s: %s gets %d", r[1], r[0], r[2], user, code)
			}
		}
	}
	t.Logf("%d requests", asked)

	req, err := http.NewRequest(http.MethodGet, "https://"+s.addr+"/api/v1/status/config", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("reader", "reader-secret")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	config, err := bufio.NewReader(res.Body).ReadString(0)
	if res.Body.Close(); !strings.Contains(config, "upstream.yml") {
		t.Errorf("configuration %q, %v", config, err)
	}
	if res.ProtoMajor != 2 || res.Header.Get("Strict-Transport-Security") == "" {
		t.Errorf("%s with %v", res.Proto, res.Header)
	}
	code, err := ask(client, http.MethodGet, "https://"+s.addr+"/api/v1/status/flags", "reader")
	if code != http.StatusOK || err != nil {
		t.Error(code, err)
	}
	// The commands take credentials from a file, as promtool does.
	s.file("client.yml", "basic_auth: {username: producer, password_file: producer.password}\ntls_config: {ca_file: \"test authority.crt\"}\n")
	s.file("producer.password", "producer-secret")
	if code, out, errs := s.tool("watermark", "--time-ms=1000", "--url=https://"+s.addr, "--http.config.file=client.yml"); code != exitOK {
		t.Errorf("watermark: %d %s%s", code, out, errs)
	}
	if code, out, errs := s.tool("backup", "--url=https://"+s.addr, "--http.config.file=client.yml"); code != exitFailure || !strings.Contains(errs, "403") {
		t.Errorf("backup by somebody who may not: %d %s%s", code, out, errs)
	}
	s.file("reader.yml", "basic_auth: {username: reader, password: reader-secret}\ntls_config: {ca_file: \"test authority.crt\"}\n")
	if code, out, errs := s.tool("explain", "up", "--url=https://"+s.addr, "--http.config.file=reader.yml"); code != exitOK {
		t.Errorf("explain: %d %s%s", code, out, errs)
	}
	s.file("nobody.yml", "tls_config: {ca_file: \"test authority.crt\"}\n")
	if code, out, errs := s.tool("explain", "up", "--url=https://"+s.addr, "--http.config.file=nobody.yml"); code != exitFailure || !strings.Contains(errs, "401 Unauthorized") {
		t.Errorf("explain for nobody: %d %s%s", code, out, errs)
	}
	// A reload takes permissions away.
	s.configure("access: {ops: [admin]}\n")
	if code, err := ask(client, http.MethodPost, "https://"+s.addr+"/-/reload", "ops"); code != http.StatusOK {
		t.Errorf("reload: %d, %v", code, err)
	}
	if code, err := ask(client, http.MethodGet, "https://"+s.addr+"/api/v1/query?query=1", "reader"); code != http.StatusForbidden {
		t.Errorf("after the reload: %d, %v", code, err)
	}
	s.stop(p)
	for _, secret := range []string{"-secret", "$2a$"} {
		if strings.Contains(p.out.String()+config, secret) {
			t.Errorf("%q is in the log or the configuration shown:\n%s%s", secret, p.out.String(), config)
		}
	}
}

// TestClientCertificates holds that a certificate says who a client is where no passwords are asked for, and that a name in a
// header then says nothing.
func TestClientCertificates(t *testing.T) {
	s := newSite(t, "access: {producer: [write], reader: [read]}\n")
	ca := newAuthority(t, s.dir)
	for _, name := range []string{"server", "producer", "reader", "stranger"} {
		ca.sign(name, false)
	}
	s.file("web.yml", "tls_server_config: {cert_file: server.crt, key_file: server.key, client_auth_type: RequireAndVerifyClientCert, client_ca_file: \"test authority.crt\"}\n")
	p := s.secured(ca.client("reader"), "")
	if code, err := ask(ca.client(""), http.MethodGet, "https://"+s.addr+"/-/healthy", ""); err == nil {
		t.Errorf("without a certificate: %d", code)
	}
	for _, tc := range []struct {
		cert, user, method, path string
		want                     int
	}{
		{"reader", "", http.MethodGet, "/api/v1/query?query=1", http.StatusOK},
		{"reader", "", http.MethodPost, "/api/v1/precompute/watermark?time_ms=1", http.StatusForbidden},
		{"reader", "producer", http.MethodPost, "/api/v1/precompute/watermark?time_ms=1", http.StatusForbidden},
		{"producer", "", http.MethodPost, "/api/v1/precompute/watermark?time_ms=1", http.StatusOK},
		{"producer", "", http.MethodGet, "/api/v1/query?query=1", http.StatusForbidden},
		{"stranger", "", http.MethodGet, "/api/v1/query?query=1", http.StatusForbidden},
		{"stranger", "reader", http.MethodGet, "/api/v1/query?query=1", http.StatusForbidden},
		{"stranger", "", http.MethodGet, "/-/healthy", http.StatusOK},
	} {
		if code, err := ask(ca.client(tc.cert), tc.method, "https://"+s.addr+tc.path, tc.user); code != tc.want {
			t.Errorf("%s as %q, %s %s: %d (%v), want %d", tc.cert, tc.user, tc.method, tc.path, code, err, tc.want)
		}
	}
	s.stop(p)
}

// What would not protect what it seems to is refused at the start.
func TestWebConfigRefused(t *testing.T) {
	s := newSite(t, "access: {ops: [admin]}\n")
	for _, tc := range []struct{ config, web, want string }{
		{"access: {ops: [admin]}\n", "", "nobody can say who they are"},
		{"access: {ops: [admin]}\n", "http_server_config: {http2: false}\n", "neither basic_auth_users nor client certificates"},
		{"access: {ops: [owner]}\n", "basic_auth_users: {ops: x}\n", `"owner" is none of read, write and admin`},
		{"access: {ops: []}\n", "basic_auth_users: {ops: x}\n", "empty"},
		{"", "basic_auth_users: {ops: plain-secret}\n", "--web.config.file"},
		{"", "rate_limit: {interval: 1s, burst: 1}\n", "--write.rate-limit"},
		{"", "tls_server_config: {cert_file: none.crt, key_file: none.key}\n", "none.crt"},
		{"exact: {http_config_file: x.yml}\n", "", "no upstream"},
	} {
		s.configure(tc.config)
		args := []string{"serve", "--web.listen-address=" + s.addr}
		if tc.web != "" {
			s.file("web.yml", tc.web)
			args = append(args, "--web.config.file=web.yml")
		}
		why := s.wantFailure(exitUsage, args...)
		if !strings.Contains(why, tc.want) || strings.Contains(why, "secret") {
			t.Errorf("%q with %q: %s, want %s", tc.config, tc.web, why, tc.want)
		}
	}
}
