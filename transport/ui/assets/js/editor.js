// The box for an expression, with completion. It is a combobox: arrows move in the list, Enter or Tab takes an entry, Escape
// closes it; with the list closed Enter runs the query and Shift+Enter begins a line.
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from './html.js';
import { context } from './promql.js';
import { suggestions } from './names.js';

// fit makes a box as high as its text needs.
function fit(el) {
  el.style.height = 'auto';
  el.style.height = Math.min(el.scrollHeight + 2, 320) + 'px';
}

export function Editor({ value, onChange, onRun }) {
  const box = useRef(null);
  const list = useId();
  const [open, setOpen] = useState(null); // { items, at, from }
  const turn = useRef(0);
  const next = useRef(-1); // where the cursor goes with the next text

  useLayoutEffect(() => {
    const el = box.current;
    if (next.current >= 0) el.setSelectionRange(next.current, next.current);
    next.current = -1;
    fit(el);
  }, [value]);
  useEffect(() => {
    const again = () => fit(box.current);
    addEventListener('resize', again);
    return () => removeEventListener('resize', again);
  }, []);

  const close = () => {
    turn.current++;
    setOpen(null);
  };

  const complete = async (text, cursor) => {
    const mine = ++turn.current;
    const place = context(text.slice(0, cursor));
    let items = [];
    try {
      items = place.kind === 'none' ? [] : await suggestions(place);
    } catch {
      // Without names one can still write; the query itself tells what is wrong with the server.
    }
    if (mine !== turn.current) return;
    const done = items.length === 1 && items[0].text === place.prefix;
    setOpen(items.length > 0 && !done ? { items, at: -1, from: place.from } : null);
  };

  const take = (item) => {
    const el = box.current;
    const text = value.slice(0, open.from) + item.insert + value.slice(el.selectionStart);
    const cursor = open.from + item.insert.length;
    close();
    next.current = cursor;
    onChange(text);
  };

  const move = (by) => setOpen({ ...open, at: (open.at + by + open.items.length + (open.at < 0 && by < 0 ? 1 : 0)) % open.items.length });

  const onKeyDown = (e) => {
    if (e.isComposing) return;
    if (open && (e.key === 'ArrowDown' || e.key === 'ArrowUp')) {
      e.preventDefault();
      move(e.key === 'ArrowDown' ? 1 : -1);
    } else if (open && e.key === 'Escape') {
      e.preventDefault();
      close();
    } else if (open && e.key === 'Tab' && !e.shiftKey) {
      e.preventDefault();
      take(open.items[Math.max(open.at, 0)]);
    } else if (open && e.key === 'Enter' && open.at >= 0) {
      e.preventDefault();
      take(open.items[open.at]);
    } else if (e.key === 'Enter' && !e.shiftKey) {
      e.preventDefault();
      close();
      onRun();
    } else if (e.key === ' ' && e.ctrlKey) {
      e.preventDefault();
      complete(value, e.currentTarget.selectionStart);
    }
  };

  return html`<div class="editor">
    <textarea ref=${box} rows="1" class="mono" spellcheck="false" autocomplete="off" autocapitalize="off" placeholder="A PromQL expression"
      role="combobox" aria-label="PromQL expression" aria-autocomplete="list" aria-expanded=${open ? 'true' : 'false'} aria-controls=${list}
      aria-activedescendant=${open && open.at >= 0 ? `${list}-${open.at}` : undefined}
      value=${value} onKeyDown=${onKeyDown} onBlur=${close}
      onInput=${(e) => {
        onChange(e.currentTarget.value);
        complete(e.currentTarget.value, e.currentTarget.selectionStart);
      }}></textarea>
    <ul id=${list} role="listbox" aria-label="Completions" class="completions" hidden=${!open}>
      ${open && open.items.map((item, i) => html`<li key=${item.kind + item.text} id=${`${list}-${i}`} role="option" aria-selected=${i === open.at ? 'true' : 'false'}
        onMouseDown=${(e) => {
          e.preventDefault(); // the focus stays in the box
          take(item);
        }}><span class="mono">${item.text}</span><span class="faint">${item.kind}</span></li>`)}
    </ul>
  </div>`;
}
