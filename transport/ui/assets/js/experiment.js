// The screen of one experiment: its row, what can be done about it, its samples over the last day, what reads it, its series,
// its tasks.
import { html, useMemo, useState } from './html.js';
import { ApiError, get, post } from './api.js';
import { href } from './route.js';
import { useAction, useLoad } from './load.js';
import { Chart } from './chart.js';
import { Materializations, barrier } from './log.js';
import { lag } from './experiments.js';
import { TaskTable } from './tasks.js';
import { Badge, Confirm, Empty, Failure, Loading, Note, Outcome, Panel, Scroll, SeriesName, Tiles, Time, quote, seriesText } from './parts.js';
import * as format from './format.js';

const every = 5_000;
const slots = 288; // of the last day: five minutes each
const unlabelled = '_unlabelled';

const path = (name, more = '') => `api/v1/experiments/${encodeURIComponent(name)}${more}`;

// readRow asks for what is counted now, and where that does not come, for what the last scan has left.
async function readRow(name, signal) {
  try {
    return await get(path(name), { fresh: 'true', timeout: '5s' }, signal);
  } catch (error) {
    if (error.name === 'AbortError' || error.status === 404) throw error;
    const { data } = await get(path(name), {}, signal);
    return { data: { ...data, stale: true, error: error.message } };
  }
}

export function Experiment({ route }) {
  const name = route.arg;
  const row = useLoad((signal) => readRow(name, signal), [name], every);
  const status = useLoad((signal) => get('api/v1/status/log', {}, signal), []);
  const label = status.data ? status.data.barriers.experiment_label : null;
  const r = row.data;
  const missing = row.error instanceof ApiError && row.error.status === 404;
  return html`
    <nav aria-label="Way back" class="crumbs"><a href=${href('experiments')}>Experiments</a></nav>
    <div class="title-row"><h1 class="name">${name}</h1>${r && html`<p class="as-of">${r.state === 'retired' ? html`retired <${Time} ms=${r.retired_at_ms} />` : html`as of <${Time} ms=${r.observed_at_ms} />`}</p>`}</div>
    ${missing ? html`<${Panel}><${Empty} title="This experiment was never seen">No sample with this name in its experiment label was ever accepted. <a href=${href('experiments', '', { search: name })}>Search for it</a>.</${Empty}></${Panel}>`
    : html`
      ${row.error && html`<${Failure} error=${row.error} what="The experiment cannot be read" retry=${row.reload} />`}
      ${!r && !row.error && html`<${Loading} />`}
      ${r && html`
        ${r.state === 'retired' && html`<${Note} kind="info" title="This experiment is retired">Nothing of it is lost; it comes back with its next sample.</${Note}>`}
        ${r.unscanned && html`<${Note} kind="info" title="Not scanned yet">These numbers are of now. The list of experiments has it from the next scan on; <em>Rescan</em> does it at once.</${Note}>`}
        ${r.stale && html`<${Note} kind="warn" title="The last reading failed">${r.error}</${Note}>`}
        <${Figures} r=${r} />
        <${Actions} key=${name} name=${name} done=${row.reload} />
        <${Rates} name=${name} hot=${r.state === 'hot'} scanned=${!r.unscanned} n=${r.sample_count} />`}
      ${label && html`<${Inside} key=${name} name=${name} label=${label} />`}
      ${r && html`<${Tasks} name=${name} />`}`}`;
}

function Figures({ r }) {
  return html`<${Tiles} of=${[
    ['Samples', format.short(r.sample_count), `${format.count(r.sample_count)} accepted`],
    ['Series', format.count(r.series_count), 'seen'],
    ['Open panes', format.count(r.pending_panes), r.oldest_pending_ms === null ? 'all is closed' : html`the oldest is of <${Time} ms=${r.oldest_pending_ms} />`],
    ['Buckets', format.count(r.bucket_count), 'published'],
    ['Corrections', format.count(r.correction_count), r.correction_count ? `at most ${format.count(r.max_corrections_per_bucket)} in a bucket` : 'none to compact'],
    ['Watermark lag', lag(r), r.closed_through_ms === null ? 'nothing is closed' : html`closed through <${Time} ms=${r.closed_through_ms} />`],
    ['Last write', html`<${Time} ms=${r.last_write_ms} relative />`, html`<${Time} ms=${r.last_write_ms} />`],
    ['Compactions', format.count(r.total_compactions), r.last_compaction_ms ? html`the last <${Time} ms=${r.last_compaction_ms} relative />` : 'none yet'],
  ]} />`;
}

const tasks = [
  ['compact', 'Compact', 'Merges the pieces that late samples have left'],
  ['publish', 'Publish', 'Looks after panes that should have closed'],
];

const taskPolls = 40;
const taskPoll = 500; // ms between two looks at a task

// request queues a task, and says what became of it, or that it still waits.
async function request(kind, target) {
  let { data: task } = await post('api/v1/tasks', { kind, target });
  for (let i = 0; i < taskPolls && (task.state === 'queued' || task.state === 'running'); i++) {
    await new Promise((again) => setTimeout(again, taskPoll));
    ({ data: task } = await get(`api/v1/tasks/${task.id}`));
  }
  if (task.state === 'failed') throw new ApiError(`${kind}: ${task.error || task.error_class}`, task.error_class, 0);
  if (task.state !== 'done') return html`The task is ${task.state}; it goes on without this page. <a href=${href('tasks')}>To the tasks</a>`;
  return task.message || (task.unchanged ? `${kind}: there was nothing to do.` : `${kind}: done.`);
}

function Actions({ name, done }) {
  const action = useAction();
  const [asking, ask] = useState(false);
  const act = async (what, run) => {
    await action.run(what, run);
    done();
  };
  const rescan = async () => {
    const { data } = await post(path(name, '/rescan'));
    return `Read anew as of log position ${format.count(data.as_of_seq)}, and stored.`;
  };
  return html`<${Panel} title="Actions">
    ${asking && html`<${Confirm} title="Barrier now" verb="Call the barrier" onNo=${() => ask(false)} onYes=${() => {
      ask(false);
      act('barrier', () => barrier(Date.now(), name));
    }}>
      <p>It says that every sample of <span class="name">${name}</span> up to now has been written, and closes and publishes its panes. Samples that come later are corrections.</p>
    </${Confirm}>`}
    <div class="actions">
      <button type="button" class="primary" disabled=${action.busy !== ''} onClick=${() => ask(true)}>${action.busy === 'barrier' ? 'Waiting…' : 'Barrier now…'}</button>
      ${tasks.map(([kind, title, hint]) => html`<button key=${kind} type="button" title=${hint} disabled=${action.busy !== ''} onClick=${() => act(kind, () => request(kind, name))}>${action.busy === kind ? 'Waiting…' : title}</button>`)}
      <button type="button" title="Reads the row anew and stores it" disabled=${action.busy !== ''} onClick=${() => act('rescan', rescan)}>${action.busy === 'rescan' ? 'Waiting…' : 'Rescan'}</button>
    </div>
    <${Outcome} action=${action} />
  </${Panel}>`;
}

const noHistory = html`<${Empty} title="No history yet">It grows with each scan in which samples have come.</${Empty}>`;

function Rates({ name, hot, scanned, n }) {
  const rates = useLoad((signal) => (hot && scanned ? get(path(name, '/rates'), { slots }, signal) : Promise.resolve({ data: null })), [name, hot, scanned, n]);
  const lines = useMemo(() => linesOf(rates.data), [rates.data]);
  if (!hot) return null;
  const nothing = rates.data && lines.every((l) => l.values.every((v) => !v));
  return html`<${Panel} title="Samples a second, by the scans of the last day">
    ${!scanned ? noHistory
    : rates.error ? html`<${Failure} error=${rates.error} what="The history cannot be read" retry=${rates.reload} />`
    : !rates.data ? html`<${Loading} />`
    : nothing ? noHistory
    : html`<${Chart} lines=${lines} from=${beginning(rates.data)} to=${rates.data.until_ms} height=${200} area label="Samples a second over the last day" />
      ${lines.length > 1 && html`<${Key} lines=${lines} />`}`}
  </${Panel}>`;
}

const margin = 12; // slots before the first sample

// beginning leaves out the part of the day before the experiment began.
function beginning(rates) {
  const first = rates.rates.findIndex((v) => v > 0);
  return rates.from_ms + Math.max(first - margin, 0) * rates.slot_ms;
}

// linesOf makes one line of the samples, and one of the late ones where the history tells them apart.
function linesOf(rates) {
  if (!rates) return [];
  const line = (label, values, colour) => ({ label, values, colour, times: values.map((_, i) => rates.from_ms + (i + 0.5) * rates.slot_ms) });
  const out = [line('samples', rates.rates, 's0')];
  if (rates.late_rates) out.push(line('late samples', rates.late_rates, 's1'));
  return out;
}

function Key({ lines }) {
  return html`<ul class="key">${lines.map((l) => html`<li key=${l.label}><span class="swatch" style=${{ background: `var(--${l.colour})` }}></span>${l.label}</li>`)}</ul>`;
}

const mostSeries = 200;

// Inside shows the series of an experiment, and which materializations read them.
function Inside({ name, label }) {
  const labelName = /^[a-zA-Z_][a-zA-Z0-9_]*$/.test(label) ? label : quote(label);
  const match = name === unlabelled ? `{__name__=~".+",${labelName}=""}` : `{${labelName}=${quote(name)}}`;
  const series = useLoad((signal) => get('api/v1/series', { 'match[]': match, limit: mostSeries }, signal), [match]);
  const list = useLoad((signal) => get('api/v1/materializations', {}, signal), [], every);
  const metrics = new Set((series.data || []).map((s) => s.__name__));
  // A materialization without the name of a metric may read any.
  const reads = (m) => {
    const words = m.expr.match(/[a-zA-Z_:][a-zA-Z0-9_:]*/g) || [];
    return words.some((w) => metrics.has(w)) || /[^a-zA-Z0-9_:]\{|^\{/.test(m.expr);
  };
  const truncated = series.answer && series.answer.warnings.length > 0;
  return html`
    <${Materializations} list=${list} only=${series.data ? reads : undefined} title="Materializations that read it" />
    <${Panel} title="Series" aside=${series.data && html`<span class="as-of">${truncated ? `the first ${mostSeries}` : format.count(series.data.length)}</span>`} flush>
      ${series.error && html`<${Failure} error=${series.error} what="The series cannot be read" retry=${series.reload} />`}
      ${!series.data && !series.error && html`<${Loading} />`}
      ${series.data && series.data.length === 0 && html`<${Empty} title="No series">The index has none with this label.</${Empty}>`}
      ${series.data && series.data.length > 0 && html`<${Scroll} label="Series"><ul class="series-list">
        ${series.data.map((s) => html`<li key=${seriesText(s)}><a href=${href('query', '', { expr: seriesText(s) })}><${SeriesName} metric=${s} /></a></li>`)}
      </ul></${Scroll}>`}
    </${Panel}>`;
}

function Tasks({ name }) {
  const list = useLoad((signal) => get('api/v1/tasks', { target: name, limit: 200 }, signal), [name], every);
  if (list.error) return null; // the screen of tasks says why
  const mine = list.data && list.data.tasks.filter((t) => t.target === name);
  return html`<${Panel} title="Tasks" flush>${!mine ? html`<${Loading} />`
    : mine.length === 0 ? html`<${Empty} title="None">Sweeps queue tasks where they are needed; the actions above do it by hand.</${Empty}>`
    : html`<${TaskTable} tasks=${mine} target=${false} />`}</${Panel}>`;
}
