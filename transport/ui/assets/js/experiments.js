// The screen of all experiments: the recently active ones, search over all, sorting, pages.
import { html, useEffect, useRef, useState } from './html.js';
import { get, post } from './api.js';
import { href, replace } from './route.js';
import { useAction, useDebounced, useLoad } from './load.js';
import { Spark } from './chart.js';
import { Badge, Empty, Failure, Field, Icon, Loading, Note, Outcome, Scroll, Segments, Time } from './parts.js';
import * as format from './format.js';

const every = 10_000;
const slots = 48; // of the last day, in the sparkline
const states = [['hot', 'Active'], ['retired', 'Retired'], ['all', 'All']];
const sizes = [50, 100, 200];
const newest = '-last_write_ms';

export function Experiments({ route }) {
  const p = route.params;
  const search = p.search || '';
  const state = p.state || (search ? 'all' : 'hot');
  const sortable = state === 'hot';
  const sort = sortable ? p.sort || newest : 'name';
  const limit = sizes.includes(Number(p.limit)) ? Number(p.limit) : sizes[0];
  const offset = Math.max(Number.parseInt(p.offset, 10) || 0, 0);
  const asked = { search, state, sort, limit, offset, rates: slots };
  const list = useLoad((signal) => get('api/v1/experiments', asked, signal), [search, state, sort, limit, offset], every);
  const action = useAction();
  const to = (changes) => href('experiments', '', { ...p, offset: '', ...changes });
  const page = list.data;

  const scan = async () => {
    await action.run('scan', async () => {
      const { data } = await post('api/v1/rescan');
      return `Scanned ${format.count(data.scanned)} experiments: ${format.count(data.observed)} read anew, ${format.count(data.skipped)} unchanged${
        data.retired ? `, ${format.count(data.retired)} retired` : ''}${data.failed ? `, ${format.count(data.failed)} could not be read` : ''}.`;
    });
    list.reload();
  };

  return html`
    <div class="title-row"><h1>Experiments</h1>
      <div class="title-end">${page && html`<${AsOf} page=${page} />`}<button type="button" disabled=${action.busy !== ''} onClick=${scan}>${action.busy ? 'Scanning…' : 'Scan now'}</button></div>
    </div>
    ${page && page.stale && html`<${Stale} page=${page} />`}
    <${Outcome} action=${action} />
    <div class="tools">
      <${Search} value=${search} onChange=${(text) => replace(to({ search: text, state: '' }))} />
      <${Segments} label="Which" options=${states} value=${state} onChange=${(s) => replace(to({ state: s === (search ? 'all' : 'hot') ? '' : s, sort: '' }))} />
    </div>
    <section class=${'panel' + (list.busy && !page ? ' busy' : '')} aria-label="Experiments">
      ${list.error && html`<div class="panel-body"><${Failure} error=${list.error} what="The experiments cannot be read" retry=${list.reload} /></div>`}
      ${!page && !list.error && html`<${Loading} />`}
      ${page && (page.experiments.length === 0 ? html`<${None} page=${page} search=${search} state=${state} first=${to({})} />`
      : html`<${Table} page=${page} sort=${sort} sortable=${sortable} to=${to} />
        <${Pager} page=${page} limit=${limit} to=${(changes) => href('experiments', '', { ...p, ...changes })} />`)}
    </section>`;
}

function AsOf({ page }) {
  if (page.scanned_at_ms === null) return html`<span class="as-of">not scanned yet</span>`;
  return html`<span class="as-of">as of <${Time} ms=${page.scanned_at_ms} />, ${format.count(page.hot)} active, ${format.count(page.retired)} retired</span>`;
}

function Stale({ page }) {
  if (page.scanned_at_ms === null) return html`<${Note} kind="warn" title="There is no table yet">The first scan has not ended. Until then nothing is listed; a single experiment can be opened by its name.</${Note}>`;
  return html`<${Note} kind="warn" title=${`This table is ${format.duration(Date.now() - page.scanned_at_ms)} old`}>
    Scans are overdue, or the projection lags behind the log: the table is of log position ${format.count(page.as_of_seq)}, and the log is at ${format.count(page.log_head_seq)}.
  </${Note}>`;
}

// Search changes the address once nothing has been typed for a moment.
function Search({ value, onChange }) {
  const [text, set] = useState(value);
  const box = useRef(null);
  const settled = useDebounced(text, 250);
  useEffect(() => set(value), [value]);
  useEffect(() => {
    if (settled === text && settled !== value) onChange(settled);
  }, [settled]);
  useEffect(() => {
    const slash = (e) => {
      if (e.key !== '/' || e.target.closest('input, textarea, select, dialog')) return;
      e.preventDefault();
      box.current.focus();
    };
    addEventListener('keydown', slash);
    return () => removeEventListener('keydown', slash);
  }, []);
  return html`<label class="search"><span class="hidden">Search in the names of all experiments</span><${Icon} name="search" />
    <input ref=${box} type="search" placeholder="Search all by name  ( / )" value=${text} spellcheck="false" autocomplete="off" maxlength="1000"
      onInput=${(e) => set(e.currentTarget.value)} />
  </label>`;
}

function None({ page, search, state, first }) {
  if (search) return html`<${Empty} title="Nothing has this in its name">The search takes “${search}” as it is written, capitals included${state === 'all' ? '' : html`, and only among the ${state === 'hot' ? 'active' : state} ones`}. What was written since the last scan is not listed yet: <a href=${href('experiment', search)}>open “${search}” by its name</a>.</${Empty}>`;
  if (page.offset > 0 && page.total > 0) return html`<${Empty} title="There is no such page"><a href=${first}>To the first page</a></${Empty}>`;
  if (state === 'retired') return html`<${Empty} title="None is retired">An experiment retires when nothing was written to it for a while; it stays findable here.</${Empty}>`;
  return html`<${Empty} title="No experiments yet">They appear with the first samples that carry the experiment label, after the next scan.</${Empty}>`;
}

// The columns: name in the API, title, how it is shown, class.
const columns = [
  ['sample_count', 'Samples', (r) => format.short(r.sample_count), 'num'],
  ['series_count', 'Series', (r) => format.count(r.series_count), 'num'],
  ['pending_panes', 'Open panes', (r) => format.count(r.pending_panes), 'num'],
  ['bucket_count', 'Buckets', (r) => format.short(r.bucket_count), 'num'],
  ['correction_count', 'Corrections', (r) => (r.correction_count ? format.count(r.correction_count) : html`<span class="faint">0</span>`), 'num'],
  ['closed_through_ms', 'Watermark lag', (r) => lag(r), 'num'],
  ['last_write_ms', 'Last write', (r) => html`<${Time} ms=${r.last_write_ms} relative />`, ''],
];

// lag says how far what is closed was behind the last write.
export function lag(row) {
  if (row.closed_through_ms === null || row.last_write_ms === null) return html`<span class="faint">–</span>`;
  const d = row.last_write_ms - row.closed_through_ms;
  return d <= 0 ? 'none' : html`<span title=${`closed through ${format.time(row.closed_through_ms)}`}>${format.duration(d)}</span>`;
}

function Table({ page, sort, sortable, to }) {
  return html`<${Scroll} label="Experiments, one a row"><table class="experiments">
    <thead><tr>
      <${Heading} column="name" title="Experiment" sort=${sort} sortable=${sortable} to=${to} />
      <th scope="col">Last day</th>
      ${columns.map(([column, title, , kind]) => html`<${Heading} key=${column} column=${column} title=${title} kind=${kind} sort=${sort} sortable=${sortable} to=${to} />`)}
    </tr></thead>
    <tbody>${page.experiments.map((r) => html`<tr key=${r.name}>
      <th scope="row"><a class="name" href=${href('experiment', r.name)}>${r.name}</a>
        ${r.state === 'retired' && html` <${Badge}>retired</${Badge}>`}
        ${r.stale && html` <${Badge} kind="warn" title=${r.error}>not read</${Badge}>`}</th>
      <td>${r.state === 'retired' ? '' : html`<${Spark} values=${r.rates} />`}</td>
      ${columns.map(([column, , show, kind]) => html`<td key=${column} class=${kind}>${show(r)}</td>`)}
    </tr>`)}</tbody>
  </table></${Scroll}>`;
}

function Heading({ column, title, kind = '', sort, sortable, to }) {
  const up = sort === column;
  const down = sort === '-' + column;
  if (!sortable) return html`<th scope="col" class=${kind}>${title}</th>`;
  // Figures begin with the greatest, names with the first.
  const next = column === 'name' ? (up ? '-name' : 'name') : down ? column : '-' + column;
  return html`<th scope="col" class=${kind} aria-sort=${up ? 'ascending' : down ? 'descending' : undefined}>
    <button type="button" class="sort" onClick=${() => replace(to({ sort: next === newest ? '' : next }))}>${title}<span class="arrow" aria-hidden="true">${up ? '↑' : down ? '↓' : ''}</span></button>
  </th>`;
}

function Pager({ page, limit, to }) {
  const last = page.offset + page.experiments.length;
  const link = (text, offset, off) => (off
    ? html`<span class="page off" aria-disabled="true">${text}</span>`
    : html`<a class="page" href=${to({ offset: offset > 0 ? offset : '' })}>${text}</a>`);
  return html`<nav class="pager" aria-label="Pages">
    <span>${format.count(page.offset + 1)}–${format.count(last)} of ${format.count(page.total)}</span>
    ${page.total > limit && html`<span class="pages">
      ${link('First', 0, page.offset === 0)}${link('Previous', page.offset - limit, page.offset === 0)}
      ${link('Next', page.offset + limit, last >= page.total)}${link('Last', Math.floor((page.total - 1) / limit) * limit, last >= page.total)}
    </span>`}
    <${Field} label="Rows"><select value=${String(limit)} onChange=${(e) => replace(to({ limit: e.currentTarget.value === String(sizes[0]) ? '' : e.currentTarget.value, offset: '' }))}>
      ${sizes.map((n) => html`<option key=${n} value=${String(n)}>${n}</option>`)}
    </select></${Field}>
  </nav>`;
}
