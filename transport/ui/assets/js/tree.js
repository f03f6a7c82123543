// A tree that is walked by mouse and by keyboard: up and down move, right opens or goes in, left closes or goes out, Home and End go to
// the first and the last that is shown, Enter and Space open and close.
import { html, useRef, useState } from './html.js';

// Tree shows nodes that have children. row renders one; below, if it returns something, is what a node shows when it is open.
export function Tree({ root, label, row, below }) {
  const [closed, setClosed] = useState(() => new Set());
  const [active, setActive] = useState('0');
  const ref = useRef(null);

  const toggle = (path, open) => setClosed((was) => {
    const next = new Set(was);
    if (open ?? next.has(path)) next.delete(path);
    else next.add(path);
    return next;
  });
  const focus = (path) => {
    setActive(path);
    ref.current.querySelector(`[data-path="${path}"]`)?.focus();
  };

  const onKeyDown = (e) => {
    if (e.target.getAttribute('role') !== 'treeitem' || e.altKey || e.ctrlKey || e.metaKey) return;
    const path = e.target.dataset.path;
    const shown = [...ref.current.querySelectorAll('[role=treeitem]')].map((el) => el.dataset.path);
    const at = shown.indexOf(path);
    const opens = e.target.getAttribute('aria-expanded');
    const to = {
      ArrowDown: () => focus(shown[Math.min(at + 1, shown.length - 1)]),
      ArrowUp: () => focus(shown[Math.max(at - 1, 0)]),
      Home: () => focus(shown[0]),
      End: () => focus(shown[shown.length - 1]),
      ArrowRight: () => (opens === 'false' ? toggle(path, true) : shown.includes(path + '.0') && focus(path + '.0')),
      ArrowLeft: () => (opens === 'true' ? toggle(path, false) : path.includes('.') && focus(path.slice(0, path.lastIndexOf('.')))),
      Enter: () => opens && toggle(path),
      ' ': () => opens && toggle(path),
    }[e.key];
    if (!to) return;
    e.preventDefault();
    e.stopPropagation();
    to();
  };

  const item = (node, path, level) => {
    const children = node.children || [];
    const more = below(node);
    const opens = children.length > 0 || !!more;
    const open = opens && !closed.has(path);
    return html`<li key=${path} role="treeitem" data-path=${path} aria-level=${level} aria-expanded=${opens ? String(open) : undefined}
        aria-selected=${active === path ? 'true' : 'false'} tabindex=${active === path ? 0 : -1} onFocus=${(e) => e.target === e.currentTarget && setActive(path)}>
      <div class="tree-row" onClick=${() => {
        focus(path);
        if (opens && !String(getSelection())) toggle(path);
      }}><span class=${'tree-mark' + (open ? ' open' : '')} aria-hidden="true">${opens ? '▸' : ''}</span><div class="tree-line">${row(node)}</div></div>
      ${open && more && html`<div class="tree-below">${more}</div>`}
      ${open && children.length > 0 && html`<ul role="group">${children.map((c, i) => item(c, `${path}.${i}`, level + 1))}</ul>`}
    </li>`;
  };

  return html`<ul class="tree" role="tree" aria-label=${label} ref=${ref} onKeyDown=${onKeyDown}>${item(root, '0', 1)}</ul>`;
}
