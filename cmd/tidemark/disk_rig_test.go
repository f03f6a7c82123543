package main

// Small real disks that a test can fill and stall.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"
)

// smallDisk is a file system of its own, mounted where the storage directory of a site will be.
type smallDisk struct {
	t    *testing.T
	path string
}

// mountSmall mounts a tmpfs of so many bytes. Where that is not allowed the test is left out, and says what is held without it: the
// other tests of full disks limit the size of files, inject the free space that is seen, and fail single operations.
func mountSmall(t *testing.T, path string, bytes int64) *smallDisk {
	t.Helper()
	d, err := tryMount(t, path, bytes)
	if err != nil {
		t.Skipf("LEFT OUT: a disk that is really full, because no tmpfs can be mounted: %v; TestL4_FullFileEndsTheProcess, TestDiskReserve and TestCase_B04_Ballast hold the rest", err)
	}
	return d
}

// tryMount is mountSmall for tests that can do without.
func tryMount(t *testing.T, path string, bytes int64) (*smallDisk, error) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		return nil, err
	}
	d := &smallDisk{t, path}
	t.Cleanup(d.unmount)
	return d, nil
}

// mountLoop makes an ext4 in a file and mounts it: unlike a tmpfs it can be frozen.
func mountLoop(t *testing.T, path string, bytes int64) *smallDisk {
	t.Helper()
	const held = "TestCase_B34_StalledDisk (package remotewrite) holds the same with syncs that do not return"
	image := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.MkdirAll(path, 0o755), os.WriteFile(image, nil, 0o600), os.Truncate(image, bytes)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, path}} {
		program, err := exec.LookPath(args[0])
		if err != nil {
			program, err = exec.LookPath(filepath.Join("/usr/sbin", args[0]))
		}
		if err != nil {
			t.Skipf("LEFT OUT: a disk that really stalls, because %v; %s", err, held)
		}
		if out, err := exec.Command(program, args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("LEFT OUT: a disk that really stalls, because %v does not work here: %v: %s; %s", args, err, out, held)
		}
	}
	d := &smallDisk{t, path}
	t.Cleanup(d.unmount)
	return d
}

func (d *smallDisk) unmount() {
	if err := syscall.Unmount(d.path, 0); err != nil {
		d.t.Errorf("unmount %s: %v", d.path, errors.Join(err, syscall.Unmount(d.path, syscall.MNT_DETACH)))
	}
}

// free returns the bytes that are left.
func (d *smallDisk) free() uint64 {
	d.t.Helper()
	n, err := statFree(d.path)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

// fill takes all but so many bytes of the disk away, by a file that is not the service's, until the file is removed again.
func (d *smallDisk) fill(but uint64) (remove func()) {
	d.t.Helper()
	f, err := os.CreateTemp(d.path, "foreign-")
	if err != nil {
		d.t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for free := d.free(); free > but; free = d.free() {
		if _, err := f.Write(block[:min(uint64(len(block)), free-but)]); err != nil && !errors.Is(err, syscall.ENOSPC) {
			d.t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		d.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			d.t.Error(err)
		}
	}
}

// Requests of ioctl(2) that stop and let go every write to a file system.
const (
	ioctlFreeze = 0xC0045877
	ioctlThaw   = 0xC0045878
)

// freeze lets every write and sync of the disk hang until it is thawed, as a disk does that answers no more.
func (d *smallDisk) freeze() {
	d.t.Helper()
	if err := d.ioctl(ioctlFreeze); err != nil {
		d.t.Skipf("LEFT OUT: a disk that really stalls, because it cannot be frozen: %v", err)
	}
	d.t.Cleanup(d.thaw) // before the process on it is killed, which would wait for the disk
}

func (d *smallDisk) thaw() {
	if err := d.ioctl(ioctlThaw); err != nil && !errors.Is(err, syscall.EINVAL) { // it is not frozen
		d.t.Error(err)
	}
}

func (d *smallDisk) ioctl(request uintptr) error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	var arg int
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&arg)))
	err = f.Close()
	if errno != 0 {
		return errno
	}
	return err
}
