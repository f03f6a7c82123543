package master

import "context"

func (w *work) retire(context.Context) {}
