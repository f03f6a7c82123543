// The screen of tasks: what runs, what waits, what has ended, and what is passed over for a while.
import { html } from './html.js';
import { get, post } from './api.js';
import { href, replace } from './route.js';
import { useAction, useLoad } from './load.js';
import { Badge, Empty, Failure, Loading, Note, Outcome, Panel, Scroll, Tiles, Time } from './parts.js';
import * as format from './format.js';

const every = 3_000;
const size = 100;

const kinds = { queued: 'quiet', running: 'blue', done: 'good', failed: 'bad' };

export function Tasks({ route }) {
  const offset = Math.max(Number.parseInt(route.params.offset, 10) || 0, 0);
  const list = useLoad((signal) => get('api/v1/tasks', { limit: size, offset }, signal), [offset], every);
  const live = useLoad((signal) => readLive(signal), [], every);
  const cooldowns = useLoad((signal) => get('api/v1/scheduler/cooldowns', {}, signal), [], every);
  const action = useAction();
  const page = list.data;
  const paused = page && page.paused;
  const turn = async () => {
    await action.run('turn', async () => {
      await post(paused ? 'api/v1/tasks/resume' : 'api/v1/tasks/pause');
      return paused ? 'Tasks are claimed again.' : 'Paused: what runs is finished, and nothing new is claimed.';
    });
    list.reload();
  };
  return html`
    <div class="title-row"><h1>Tasks</h1>
      ${page && html`<div class="title-end"><button type="button" disabled=${action.busy !== ''} onClick=${turn}>${paused ? 'Resume' : 'Pause'}</button></div>`}
    </div>
    ${paused && html`<${Note} kind="warn" title="Tasks are paused">Nothing new is claimed until they are resumed. Sweeps go on queueing.</${Note}>`}
    <${Outcome} action=${action} />
    ${list.error && html`<${Failure} error=${list.error} what="The tasks cannot be read" retry=${list.reload} />`}
    ${!page && !list.error && html`<${Loading} />`}
    ${page && html`
      <${Counts} page=${page} cooldowns=${cooldowns.data} />
      <${Live} tasks=${live.data || []} queued=${page.queued} />
      <${Ended} page=${page} offset=${offset} />`}
    <${Cooldowns} list=${cooldowns} />`;
}

function Counts({ page, cooldowns }) {
  return html`<${Tiles} of=${[
    ['Running', format.count(page.running), 'now'],
    ['Queued', format.count(page.queued), page.paused ? 'and paused' : 'waiting'],
    ['Kept', format.count(page.total), 'tasks, the ended ones for a day'],
    ['Cooling down', cooldowns ? format.count(cooldowns.cooldowns.length) : '–', 'targets that have failed'],
  ]} />`;
}

// readLive reads what runs and the newest of what waits.
async function readLive(signal) {
  const [running, queued] = await Promise.all(['running', 'queued'].map((state) => get('api/v1/tasks', { state, limit: size }, signal)));
  return { data: running.data.tasks.concat(queued.data.tasks) };
}

function Live({ tasks, queued }) {
  const waiting = tasks.filter((t) => t.state === 'queued').length;
  return html`<${Panel} title="Running and queued" aside=${queued > waiting && html`<span class="as-of">the newest ${waiting} of ${format.count(queued)} queued</span>`} flush>${tasks.length === 0
    ? html`<${Empty} title="Nothing to do">Sweeps look for work by themselves; the screen of an experiment queues a task by hand.</${Empty}>`
    : html`<${TaskTable} tasks=${tasks} />`}</${Panel}>`;
}

function Ended({ page, offset }) {
  const ended = page.tasks.filter((t) => t.state === 'done' || t.state === 'failed');
  const last = offset + page.tasks.length;
  return html`<${Panel} title="History" flush>
    ${ended.length === 0 ? html`<${Empty} title="Nothing has ended yet" />` : html`<${TaskTable} tasks=${ended} />`}
    ${(offset > 0 || last < page.total) && html`<div class="pager">
      <span>${format.count(Math.min(offset + 1, page.total))}–${format.count(last)} of ${format.count(page.total)}</span>
      <span class="pages">
        <button type="button" disabled=${offset === 0} onClick=${() => replace(href('tasks', '', { offset: Math.max(offset - size, 0) || '' }))}>Newer</button>
        <button type="button" disabled=${last >= page.total} onClick=${() => replace(href('tasks', '', { offset: offset + size }))}>Older</button>
      </span></div>`}
  </${Panel}>`;
}

// TaskTable lists tasks; with target=false they are all about the same experiment.
export function TaskTable({ tasks, target = true }) {
  return html`<${Scroll} label="Tasks"><table>
    <thead><tr><th scope="col">State</th><th scope="col">Kind</th>${target && html`<th scope="col">Experiment</th>`}<th scope="col">Queued</th><th scope="col" class="num">Took</th><th scope="col" class="num">Attempts</th><th scope="col">Result</th><th scope="col">Id</th></tr></thead>
    <tbody>${tasks.map((t) => html`<tr key=${t.id}>
      <td><${Badge} kind=${kinds[t.state] || 'quiet'}>${t.state}</${Badge}></td>
      <td>${t.kind}${t.manual ? html` <span class="faint">by hand</span>` : ''}</td>
      ${target && html`<td><a class="name" href=${href('experiment', t.target)}>${t.target}</a></td>`}
      <td><${Time} ms=${t.queued_at_ms} /></td>
      <td class="num">${took(t)}</td>
      <td class="num">${t.attempts === undefined ? '' : format.count(t.attempts)}</td>
      <td><${Result} t=${t} /></td>
      <td class="id">${t.id}</td>
    </tr>`)}</tbody>
  </table></${Scroll}>`;
}

function took(t) {
  if (!t.started_at_ms) return '';
  return format.duration((t.finished_at_ms || Date.now()) - t.started_at_ms);
}

function Result({ t }) {
  if (t.state === 'failed') return html`<span class="bad-text">${t.error_class ? t.error_class + ': ' : ''}${t.error}</span>`;
  if (t.unchanged) return html`<span class="faint">${t.message || 'nothing to do'}</span>`;
  return html`<span>${t.message || ''}</span>`;
}

function Cooldowns({ list }) {
  const rows = list.data && list.data.cooldowns;
  return html`<${Panel} title="Cooldowns" flush>
    ${list.error && html`<${Failure} error=${list.error} what="The cooldowns cannot be read" retry=${list.reload} />`}
    ${!rows && !list.error && html`<${Loading} />`}
    ${rows && rows.length === 0 && html`<${Empty} title="No target is passed over">After three failures in a row sweeps leave a target alone for a while. A request by hand is always taken.</${Empty}>`}
    ${rows && rows.length > 0 && html`<${Scroll} label="Cooldowns"><table>
      <thead><tr><th scope="col">Kind</th><th scope="col">Experiment</th><th scope="col" class="num">Failures in a row</th><th scope="col" class="num">Left</th><th scope="col">Last error</th></tr></thead>
      <tbody>${rows.map((c) => html`<tr key=${c.kind + ' ' + c.target}>
        <td>${c.kind}</td><td><a class="name" href=${href('experiment', c.target)}>${c.target}</a></td>
        <td class="num">${format.count(c.failures)}</td><td class="num">${format.duration(c.left_ms)}</td>
        <td class="bad-text">${c.error_class}</td>
      </tr>`)}</tbody>
    </table></${Scroll}>`}
  </${Panel}>`;
}
