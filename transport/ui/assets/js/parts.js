// The small parts that every screen is made of.
import { html, useEffect, useId, useRef, useState } from './html.js';
import * as format from './format.js';

// Icons are drawn here, so that none is fetched.
const paths = {
  warn: 'M8 1.8 15 14H1L8 1.8Zm0 4.4v3.6m0 2v.4',
  bad: 'M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13Zm-2.4 4.1 4.8 4.8m0-4.8-4.8 4.8',
  info: 'M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13Zm0 5.7v4m0-6.4v.4',
  good: 'M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13ZM5 8.2l2.1 2.1L11 6.2',
  search: 'M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9Zm3.3 7.8 3.7 3.7',
  light: 'M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6Zm0-3.5V3m0 10v1.5M1.5 8H3m10 0h1.5M3.4 3.4l1.1 1.1m7 7 1.1 1.1m0-9.2-1.1 1.1m-7 7-1.1 1.1',
  dark: 'M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1Z',
  system: 'M2 3h12v8H2zM6 14h4M8 11v3',
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${paths[name]} /></svg>`;
}

// Badge is a word with a colour; the word says all.
export function Badge({ kind = 'quiet', title, children }) {
  return html`<span class=${'badge ' + kind} title=${title}>${children}</span>`;
}

export function Time({ ms, relative = false }) {
  if (ms === null || ms === undefined) return html`<span class="faint">–</span>`;
  const valid = Number.isFinite(ms) && Math.abs(ms) < 8.64e15;
  const title = valid ? new Date(ms).toISOString() : undefined;
  return html`<time title=${title}>${relative ? format.ago(ms) : format.time(ms)}</time>`;
}

// Note is a message of some weight. Errors are announced at once, the rest when there is time.
export function Note({ kind = 'info', title, children, actions }) {
  return html`<div class=${'note ' + kind} role=${kind === 'bad' ? 'alert' : 'status'}>
    <${Icon} name=${kind} />
    <div class="note-text">
      ${title && html`<strong>${title}</strong>`}
      <div>${children}</div>
    </div>
    ${actions && html`<div class="note-actions">${actions}</div>`}
  </div>`;
}

// Failure shows an error of the API, and offers to try again.
export function Failure({ error, what, retry }) {
  if (!error) return null;
  const actions = retry && html`<button type="button" onClick=${retry}>Try again</button>`;
  return html`<${Note} kind="bad" title=${what} actions=${actions}>${error.message}</${Note}>`;
}

// Outcome shows how the last action of useAction ended.
export function Outcome({ action }) {
  if (action.error) return html`<${Note} kind="bad" title="That failed">${action.error.message}</${Note}>`;
  if (action.text) return html`<${Note} kind="good">${action.text}</${Note}>`;
  return null;
}

// Loading appears only after a moment, so that quick answers do not flicker.
export function Loading({ what = 'Loading' }) {
  return html`<p class="loading" role="status"><span class="spinner" aria-hidden="true"></span>${what}…</p>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<div class="empty-text">${children}</div>`}</div>`;
}

export function Panel({ title, aside, children, flush = false }) {
  const id = useId();
  return html`<section class="panel" aria-labelledby=${title ? id : undefined}>
    ${title && html`<header class="panel-head"><h2 id=${id}>${title}</h2>${aside && html`<div class="panel-aside">${aside}</div>`}</header>`}
    <div class=${flush ? 'panel-body flush' : 'panel-body'}>${children}</div>
  </section>`;
}

// Tiles are a few figures side by side: [label, value, note].
export function Tiles({ of }) {
  return html`<dl class="tiles">${of.map(([label, value, note]) => html`<div class="tile" key=${label}>
    <dt>${label}</dt><dd><span class="figure">${value}</span>${note && html`<span class="tile-note">${note}</span>`}</dd>
  </div>`)}</dl>`;
}

// Scroll lets a wide table scroll by itself, by mouse and by keyboard.
export function Scroll({ label, children }) {
  return html`<div class="scroll" role="region" aria-label=${label} tabindex="0">${children}</div>`;
}

// Confirm asks before something is done. The browser's own dialog holds the focus and closes with Escape.
export function Confirm({ title, children, verb, onYes, onNo }) {
  const ref = useRef(null);
  const id = useId();
  useEffect(() => {
    ref.current.showModal();
  }, []);
  return html`<dialog ref=${ref} aria-labelledby=${id} onClose=${onNo}>
    <h2 id=${id}>${title}</h2>
    <div class="dialog-text">${children}</div>
    <div class="dialog-actions">
      <button type="button" onClick=${() => ref.current.close()}>Cancel</button>
      <button type="button" class="primary" onClick=${onYes}>${verb}</button>
    </div>
  </dialog>`;
}

// Segments choose one of a few values, as radio buttons do.
export function Segments({ label, options, value, onChange }) {
  const name = useId();
  return html`<fieldset class="segments"><legend class="hidden">${label}</legend>
    ${options.map(([v, text]) => html`<label key=${v} class=${v === value ? 'on' : ''}>
      <input type="radio" class="hidden" name=${name} checked=${v === value} onChange=${() => onChange(v)} /><span>${text}</span>
    </label>`)}
  </fieldset>`;
}

// Field labels a control.
export function Field({ label, children, class: kind = '' }) {
  return html`<label class=${'field ' + kind}><span class="field-label">${label}</span>${children}</label>`;
}

// Typed is an input whose value is taken over on Enter or when it is left.
export function Typed({ value, onCommit, ...rest }) {
  const [text, set] = useState(value);
  useEffect(() => set(value), [value]);
  const commit = () => {
    if (text !== value) onCommit(text);
  };
  return html`<input type="text" ...${rest} value=${text} onInput=${(e) => set(e.currentTarget.value)} onBlur=${commit}
    onKeyDown=${(e) => {
      if (e.key === 'Enter') {
        e.preventDefault();
        commit();
      }
    }} />`;
}

// Copy puts a text on the clipboard.
export function Copy({ text, label = 'Copy' }) {
  const [done, set] = useState(false);
  const copy = () => navigator.clipboard.writeText(text).then(() => {
    set(true);
    setTimeout(() => set(false), 1500);
  }, () => set(false));
  if (!navigator.clipboard) return null; // only on https and on this machine
  return html`<button type="button" class="small" onClick=${copy}>${done ? 'Copied' : label}</button>`;
}

// SeriesName shows a label set as PromQL writes it. It is text in spans, whatever is in it.
export function SeriesName({ metric }) {
  const { __name__: name, ...rest } = metric;
  const pairs = Object.entries(rest).sort(([a], [b]) => (a < b ? -1 : 1));
  if (!name && pairs.length === 0) return html`<code class="series">{}</code>`;
  return html`<code class="series">${name && html`<span class="series-name">${name}</span>`}${pairs.length > 0 && html`<span class="faint">{</span>${
    pairs.map(([k, v], i) => html`${i > 0 && html`<span class="faint">, </span>`}<span class="pair"><span class="series-label">${k}</span>=<span class="series-value">${quote(v)}</span></span>`)
  }<span class="faint">}</span>`}</code>`;
}

// quote writes a label's value as PromQL reads it.
export function quote(text) {
  return '"' + text.replace(/[\\"]/g, '\\$&').replace(/\n/g, '\\n') + '"';
}

export function seriesText(metric) {
  const { __name__: name = '', ...rest } = metric;
  const pairs = Object.entries(rest).sort(([a], [b]) => (a < b ? -1 : 1)).map(([k, v]) => k + '=' + quote(v));
  return pairs.length === 0 && name ? name : `${name}{${pairs.join(', ')}}`;
}
