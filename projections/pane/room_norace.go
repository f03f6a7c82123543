//go:build !race

package pane

func (*roomChunk) spoil() {}
