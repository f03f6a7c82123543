// The screen of the log: how far it is, what is folded from it, what keeps it, and the barriers.
import { html, useMemo, useState } from './html.js';
import { get, post } from './api.js';
import { href } from './route.js';
import { useAction, useLoad } from './load.js';
import { Chart } from './chart.js';
import { Limits } from './limits.js';
import { Badge, Confirm, Empty, Failure, Field, Loading, Note, Outcome, Panel, Scroll, Tiles, Time } from './parts.js';
import * as format from './format.js';

const every = 5_000;

export function LogScreen() {
  const status = useLoad((signal) => get('api/v1/status/log', {}, signal), [], every);
  const list = useLoad((signal) => get('api/v1/materializations', {}, signal), [], every);
  const s = status.data;
  if (!s) {
    return html`<h1>Log and projections</h1>${status.error
      ? html`<${Failure} error=${status.error} what="The state of the log cannot be read" retry=${status.reload} />`
      : html`<${Loading} />`}`;
  }
  const again = () => {
    status.reload();
    list.reload();
  };
  return html`
    <div class="title-row"><h1>Log and projections</h1><p class="as-of">as of <${Time} ms=${s.as_of_ms} /></p></div>
    ${s.log.poisoned && html`<${Note} kind="bad" title="A write of the log failed">Nothing more is acknowledged until the service is restarted.</${Note}>`}
    <${Figures} s=${s} />
    <${Rates} rates=${s.rates} />
    <${Projections} rows=${s.projections} views=${s.views} head=${s.log.head_seq} />
    <${Materializations} list=${list} />
    <${Barriers} barriers=${s.barriers} done=${again} />
    <${Truncation} t=${s.truncation} log=${s.log} />
    <${Limits} />`;
}

const recent = 6; // steps of the rates that "now" means

function mean(values) {
  const last = values.slice(-recent);
  return last.length ? last.reduce((a, b) => a + b, 0) / last.length : null;
}

function Figures({ s }) {
  const low = s.log.free_bytes < 2 * s.log.min_free_bytes;
  return html`<${Tiles} of=${[
    ['Samples a second', format.short(mean(s.rates.samples_per_second)), `${format.short(s.log.samples_total)} since the start`],
    ['Events a second', format.short(mean(s.rates.events_per_second)), `${format.short(s.log.events_total)} since the start`],
    ['Head', format.count(s.log.head_seq), `floor ${format.count(s.log.floor_seq)}`],
    ['Series', format.count(s.log.series), 'in the index'],
    ['Log on disk', format.bytes(s.truncation.kept_bytes), s.truncation.max_size_bytes ? `of at most ${format.bytes(s.truncation.max_size_bytes)}` : 'no limit of size'],
    ['Views on disk', format.bytes(s.views.disk_bytes), s.views.pending_compactions ? `${format.count(s.views.pending_compactions)} places to compact` : 'nothing to compact'],
    ['Free on disk', format.bytes(s.log.free_bytes), low ? html`<span class="bad-text">writes stop at ${format.bytes(s.log.min_free_bytes)}</span>` : `writes stop at ${format.bytes(s.log.min_free_bytes)}`],
  ]} />`;
}

const leastShown = 600_000; // ms of the chart of rates

function Rates({ rates }) {
  const n = rates.samples_per_second.length;
  const lines = useMemo(() => {
    const times = rates.samples_per_second.map((_, i) => rates.end_ms - (n - 1 - i) * rates.step_ms);
    return [{ label: 'samples a second', times, values: rates.samples_per_second, colour: 's0' }];
  }, [rates]);
  return html`<${Panel} title="Samples a second">${lines[0].times.length < 2
    ? html`<${Empty} title="Not measured yet">The first figures come ${format.duration(2 * rates.step_ms)} after the start; an hour is kept.</${Empty}>`
    : html`<${Chart} lines=${lines} from=${rates.end_ms - Math.max(n * rates.step_ms, leastShown)} to=${rates.end_ms} height=${180} area label="Samples a second over the last hour" />`}</${Panel}>`;
}

const states = { following: 'good', replaying: 'warn', stopped: 'bad' };

function Projections({ rows, views }) {
  const troubles = [
    [views.compaction_consecutive_failures, 'compactions'], [views.expiry_consecutive_failures, 'passes of retention'], [views.recording_consecutive_failures, 'rounds of recording'],
  ].filter(([n]) => n > 0);
  return html`<${Panel} title="Projections" flush>
    ${troubles.map(([n, what]) => html`<${Note} key=${what} kind="warn">The last ${n} ${what} failed.</${Note}>`)}
    <${Scroll} label="Projections"><table>
      <thead><tr><th scope="col">Projection</th><th scope="col">State</th><th scope="col" class="num">Applied</th><th scope="col" class="num">Lag</th><th scope="col" class="num">Events behind</th><th scope="col" class="num">Checkpoint</th><th scope="col" class="num">Failed checkpoints</th></tr></thead>
      <tbody>${rows.map((p) => html`<tr key=${p.name}>
        <th scope="row">${p.name}${p.error && html`<div class="bad-text">${p.error}</div>`}</th>
        <td><${Badge} kind=${states[p.state] || 'quiet'}>${p.state}</${Badge}></td>
        <td class="num">${format.count(p.applied_seq)}</td>
        <td class="num">${p.lag_seconds > 0 ? format.duration(p.lag_seconds * 1000) : 'none'}</td>
        <td class="num">${format.count(p.lag_events)}</td>
        <td class="num">${format.count(p.durable_seq)}</td>
        <td class="num">${p.checkpoint_consecutive_failures > 0 ? html`<span class="bad-text">${p.checkpoint_consecutive_failures} in a row</span>` : 'none'}</td>
      </tr>`)}</tbody>
    </table></${Scroll}>
    ${views.pending_recorded_steps > 0 && html`<p class="hint">${format.count(views.pending_recorded_steps)} published steps are still to be recorded.</p>`}
  </${Panel}>`;
}

export function Materializations({ list, only, title = 'Materializations' }) {
  const rows = list.data && (only ? list.data.filter(only) : list.data);
  return html`<${Panel} title=${title} flush>
    ${list.error && html`<${Failure} error=${list.error} what="The materializations cannot be read" retry=${list.reload} />`}
    ${!rows && !list.error && html`<${Loading} />`}
    ${rows && rows.length === 0 && html`<${Empty} title="None">${only ? 'No materialization reads this experiment.' : 'Add some to tidemark.yml and reload.'}</${Empty}>`}
    ${rows && rows.length > 0 && html`<${Scroll} label=${title}><table>
      <thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col">Layout</th><th scope="col">Every</th><th scope="col">Published through</th><th scope="col" class="num">Open</th><th scope="col" class="num">Pieces</th><th scope="col" class="num">Size</th></tr></thead>
      <tbody>${rows.map((m) => html`<tr key=${m.name}>
        <th scope="row"><a href=${href('query', '', { expr: m.expr })}>${m.name}</a><code class="sub">${m.expr}</code></th>
        <td><${Badge} kind=${m.state === 'serving' ? 'good' : 'warn'}>${m.state}</${Badge}></td>
        <td>${m.layout === 'full_window' ? 'recorded' : m.layout}${m.quantile_error ? html`<div class="faint">quantiles to ${m.quantile_error * 100} %</div>` : ''}</td>
        <td>${m.every}</td>
        <td>${m.frontier_ms === null ? html`<span class="faint">nothing yet</span>` : html`<${Time} ms=${m.frontier_ms} /> <span class="faint">${Math.abs(m.frontier_ms) < 8.64e15 ? format.ago(m.frontier_ms) : ''}</span>`}</td>
        <td class="num">${format.count(m.open_buckets)}</td><td class="num">${format.count(m.pieces)}</td><td class="num">${format.bytes(m.bytes)}</td>
      </tr>`)}</tbody>
    </table></${Scroll}>`}
  </${Panel}>`;
}

const shownBarriers = 10;

// Barriers lists the newest, and offers one.
function Barriers({ barriers, done }) {
  const action = useAction();
  const [asking, ask] = useState(false);
  const [experiment, setExperiment] = useState('');
  const [most, setMost] = useState(shownBarriers);
  const yes = async () => {
    ask(false);
    await action.run('barrier', () => barrier(Date.now(), experiment.trim()));
    done();
  };
  const aside = html`<button type="button" disabled=${action.busy !== ''} onClick=${() => ask(true)}>${action.busy ? 'Waiting…' : 'Barrier now…'}</button>`;
  return html`<${Panel} title="Recent barriers and drains" aside=${aside} flush>
    ${asking && html`<${Confirm} title="Barrier now" verb="Call the barrier" onYes=${yes} onNo=${() => ask(false)}>
      <p>It says that every sample up to now has been written, and closes and publishes what ends before that. Samples that come later are corrections.</p>
      <${Field} label=${`Only for one ${barriers.experiment_label}`}><input type="text" value=${experiment} placeholder="all" onInput=${(e) => setExperiment(e.currentTarget.value)} /></${Field}>
    </${Confirm}>`}
    <${Outcome} action=${action} />
    ${barriers.recent.length === 0 ? html`<${Empty} title="None since the start">A producer calls <code>POST /api/v1/precompute/watermark</code> when an epoch is complete.</${Empty}>`
    : html`<${Scroll} label="Recent barriers and drains"><table>
      <thead><tr><th scope="col">Called</th><th scope="col">Kind</th><th scope="col">Up to</th><th scope="col">For</th><th scope="col" class="num">Closed</th><th scope="col">Complete through</th><th scope="col" class="num">Took</th></tr></thead>
      <tbody>${barriers.recent.slice(0, most).map((b) => html`<tr key=${b.at_ms + b.kind + b.seq}>
        <td><${Time} ms=${b.at_ms} /></td>
        <td>${b.kind}</td>
        <td>${b.time_ms === undefined ? 'everything' : html`<${Time} ms=${b.time_ms} />`}</td>
        <td>${b.experiment === undefined ? html`<span class="faint">all</span>` : html`<span class="name">${b.experiment}</span>`}</td>
        <td class="num">${b.error ? '' : format.count(b.closed_buckets)}</td>
        <td>${b.error ? html`<span class="bad-text">${b.error}</span>` : html`<${Time} ms=${b.complete_through_ms} />`}</td>
        <td class="num">${format.duration(b.took_ms)}</td>
      </tr>`)}</tbody>
    </table></${Scroll}>
    ${barriers.recent.length > most && html`<p class="more"><button type="button" onClick=${() => setMost(barriers.recent.length)}>Show all ${barriers.recent.length}</button></p>`}`}
  </${Panel}>`;
}

// barrier says that everything up to a time, in ms, was written, and returns what came of it in words.
export async function barrier(time, experiment) {
  const { data, warnings } = await post('api/v1/precompute/watermark', { time_ms: time, experiment });
  const words = `Done: ${format.count(data.closed_buckets)} ${data.closed_buckets === 1 ? 'bucket' : 'buckets'} closed, log position ${format.count(data.seq)}.`;
  return [words, ...warnings].join(' ');
}

function Truncation({ t, log }) {
  const limits = [t.retention_ms ? format.duration(t.retention_ms) : '', t.max_size_bytes ? format.bytes(t.max_size_bytes) : ''].filter(Boolean);
  const share = t.max_size_bytes ? Math.min(t.kept_bytes / t.max_size_bytes, 1) : 0;
  return html`<${Panel} title="Truncation">
    ${t.consecutive_failures > 0 && html`<${Note} kind="warn" title=${`Due, and failed ${t.consecutive_failures} times in a row`}>${t.last_error}</${Note}>`}
    <p>The log is cut ${limits.length ? 'beyond ' + limits.join(' or ') : 'by hand only'}, and never where it is still needed. It begins at ${format.count(log.floor_seq)}${
      t.truncations_total ? `; it was cut ${format.count(t.truncations_total)} times since the start` : ''}${t.base_seq ? `, behind a base at ${format.count(t.base_seq)}` : ''}.</p>
    ${t.max_size_bytes > 0 && html`<div class="meter"><progress max="1" value=${share} aria-label="Share of the size limit in use"></progress><span>${format.bytes(t.kept_bytes)} of ${format.bytes(t.max_size_bytes)}</span></div>`}
    <table class="compact"><thead><tr><th scope="col">Needed by</th><th scope="col" class="num">From</th><th scope="col" class="num">Events</th></tr></thead>
      <tbody>${t.holds.map((h) => html`<tr key=${h.by}><th scope="row">${h.by}</th><td class="num">${format.count(h.from_seq)}</td><td class="num">${format.count(Math.max(log.head_seq - h.from_seq + 1, 0))}</td></tr>`)}</tbody>
    </table>
  </${Panel}>`;
}
