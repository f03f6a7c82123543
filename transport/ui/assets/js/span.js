// The times of a query: which instant or range, and how it is brought onto the grid on which answers are kept.
import { html } from './html.js';
import { Field, Typed } from './parts.js';
import * as format from './format.js';

const aimedSteps = 240; // of a range whose step is chosen here
const maxGrid = 3600e3;

// gridOf returns the step in ms that all materializations share: the least common multiple of theirs.
export function gridOf(materializations) {
  let grid = 1000;
  for (const m of materializations || []) {
    const every = format.parseDuration(m.every || '') || 1000;
    const both = (grid / gcd(grid, every)) * every;
    if (both <= maxGrid) grid = both;
  }
  return grid;
}

function gcd(a, b) {
  return b === 0 ? a : gcd(b, a % b);
}

// timesOf works out what is asked: { time, start, end, step } in ms. Times are moved down to the grid, and a step is a
// multiple of it, unless params say exact.
export function timesOf(params, grid, now) {
  const range = format.parseDuration(params.range || '') || 3600e3;
  const unit = params.exact ? 1 : grid;
  const wanted = Number(params.end) || now;
  const end = Math.floor(wanted / unit) * unit;
  const given = format.parseDuration(params.step || '');
  const step = given || Math.max(Math.ceil(range / aimedSteps / grid), 1) * grid;
  const start = end - Math.floor(range / step) * step;
  return { time: end, start, end, step, range };
}

const ranges = ['5m', '15m', '1h', '3h', '6h', '12h', '1d', '2d', '7d'];

// Span is the row of controls. set takes the parameters that change.
export function Span({ params, grid, now, ranged, set }) {
  const times = timesOf(params, grid, now);
  const end = Number(params.end) || 0;
  const move = (by) => set({ end: (end || times.end) + by * times.range / 2 });
  return html`<div class="span">
    ${ranged && html`<${Field} label="Range">
      <select value=${params.range || '1h'} onChange=${(e) => set({ range: e.currentTarget.value === '1h' ? '' : e.currentTarget.value })}>
        ${[...new Set([...ranges, params.range || '1h'])].map((r) => html`<option key=${r} value=${r}>${r}</option>`)}
      </select>
    </${Field}>`}
    <div class="ending">
      ${ranged && html`<button type="button" onClick=${() => move(-1)} aria-label="Earlier by half the range">‹</button>`}
      <${Field} label=${ranged ? 'End' : 'Time'}>
        <input type="datetime-local" step="1" value=${end ? local(end) : ''} onChange=${(e) => set({ end: e.currentTarget.value ? new Date(e.currentTarget.value).getTime() : '' })} />
      </${Field}>
      ${ranged && html`<button type="button" onClick=${() => move(1)} aria-label="Later by half the range">›</button>`}
      <button type="button" class=${end ? '' : 'on'} aria-pressed=${end ? 'false' : 'true'} onClick=${() => set({ end: '' })}>Now</button>
    </div>
    ${ranged && html`<${Field} label="Step"><${Typed} class="narrow" placeholder=${format.promDuration(times.step)} value=${params.step || ''}
      onCommit=${(v) => set({ step: format.parseDuration(v) ? v.trim() : '' })} /></${Field}>`}
    <label class="check"><input type="checkbox" checked=${!params.exact} onChange=${(e) => set({ exact: e.currentTarget.checked ? '' : '1' })} />
      <span>Align to the grid of ${format.promDuration(grid)}</span></label>
    <label class="check" title="Leaves out what panes that are still open would add"><input type="checkbox" checked=${!!params.published} onChange=${(e) => set({ published: e.currentTarget.checked ? '1' : '' })} />
      <span>Published only</span></label>
  </div>`;
}

// local renders a time as the input for dates takes it.
function local(ms) {
  return `${format.day(ms)}T${format.clock(ms)}`;
}
