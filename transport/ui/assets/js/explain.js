// How an expression is, or would be, answered: its tree, what each node is read from, and why where it is not.
import { html } from './html.js';
import { get } from './api.js';
import { useLoad } from './load.js';
import { Badge, Copy, Empty, Failure, Loading, Note } from './parts.js';
import { Tree } from './tree.js';
import * as format from './format.js';

export function Explain({ expr, times, ranged, materializations }) {
  const seconds = (ms) => ms / 1000;
  const params = ranged ? { query: expr, start: seconds(times.start), end: seconds(times.end), step: seconds(times.step) } : { query: expr, time: seconds(times.time) };
  const plan = useLoad((signal) => get('api/v1/explain', params, signal), [expr, times.start, times.end, times.step, times.time, ranged]);
  if (plan.error) return html`<${Failure} error=${plan.error} what="This cannot be explained" retry=${plan.reload} />`;
  if (!plan.data) return html`<${Loading} what="Looking at the plan" />`;
  const parts = plan.data.parts || [];
  if (parts.length === 0) return html`<${Empty} title="Nothing is read">The expression has no selector; the engine computes it alone.</${Empty}>`;
  const missing = parts.filter((p) => p.miss).length;
  const unanswered = parts.filter((p) => p.source === 'none').length;
  return html`
    <p class="hint">${missing === 0 ? 'Every part is answered from panes or recorded windows.'
    : `${missing} of ${parts.length} ${parts.length === 1 ? 'part' : 'parts'} cannot be answered from panes${unanswered < missing ? ', and what this server has of raw samples answers them instead' : ''}.`}</p>
    <${Tree} key=${expr} root=${plan.data.tree} label="How the expression is answered" row=${(node) => html`<${Row} node=${node} />`}
      below=${(node) => node.part && (node.part.miss ? html`<${Miss} reason=${node.part.miss.reason} detail=${node.part.miss.detail} />` : html`<${Source} part=${node.part} />`)} />
    ${plan.data.add && html`<div class="add"><div class="add-head"><strong>To have it answered from panes, add to tidemark.yml</strong><${Copy} text=${plan.data.add} /></div>
      <pre class="snippet">${plan.data.add}</pre></div>`}`;
}

// The route of a node: of a part where it is read from, of what the engine makes of parts what they come to.
const routes = {
  panes: ['good', 'read from panes: warm where they are published, live where they are open'],
  recorded: ['good', 'read from recorded windows'],
  local: ['warn', "read from this server's exact copy of the samples"],
  upstream: ['warn', 'forwarded to the Prometheus behind this server'],
  none: ['bad', 'nothing here answers it'],
  hybrid: ['violet', 'partly from panes, partly from raw samples'],
  constant: ['quiet', 'computed without reading anything'],
};

// routeOf says from what a node is answered; '' where nothing below it reads.
function routeOf(node) {
  if (node.part) return node.part.source;
  const below = new Set((node.children || []).map(routeOf).filter(Boolean));
  if (below.has('none')) return 'none';
  if (below.has('panes') && below.has('recorded')) below.delete('recorded'); // both are panes'
  return below.size > 1 ? 'hybrid' : [...below][0] || '';
}

function Row({ node }) {
  const route = routeOf(node) || 'constant';
  const [kind, words] = routes[route] || ['quiet', ''];
  return html`<code class="tree-node">${node.node}</code>
    <span class="tree-kind">${node.part ? '' : node.kind === 'constant' ? 'constant' : route === 'constant' ? node.kind : `${node.kind}, by the engine`}</span>
    <span class="tree-badges">${node.part && node.part.miss && html`<${Badge} kind=${route === 'none' ? 'bad' : 'quiet'}>${node.part.miss.reason}</${Badge}> `}
      ${node.kind !== 'constant' && html`<${Badge} kind=${kind} title=${words}>${route === 'none' ? 'no answer' : route}</${Badge}>`}</span>`;
}

function Source({ part }) {
  const steps = part.step_ms > 0 ? Math.floor((part.last_ms - part.first_ms) / part.step_ms) + 1 : 1;
  const facts = [
    part.reads && ['reads', part.reads.join(', ')],
    part.func && part.func !== 'recorded' && ['function', part.func],
    part.window_ms > 0 && ['window', format.promDuration(part.window_ms)],
    part.pane_ms > 0 && ['panes', `${format.promDuration(part.pane_ms)} each, ${part.window_ms > 0 ? part.window_ms / part.pane_ms + ' a window' : ''}`],
    part.stream && ['stream', part.stream],
    part.last_ms >= part.first_ms && ['windows end', steps === 1 ? format.time(part.first_ms) : `${format.time(part.first_ms)} … ${format.time(part.last_ms)}, every ${format.promDuration(part.step_ms)}`],
  ].filter(Boolean);
  return html`<dl class="facts">${facts.map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd>${v}</dd></div>`)}</dl>`;
}

// What can be done; a part that no materialization covers has its lines of configuration elsewhere.
const advice = {
  off_grid: 'The times are not on the grid of the materialization. Ask at multiples of its step.',
  unpublished: 'Some windows are still open. They are published by a barrier, by later samples, or by the clock; until then ask for an earlier time.',
  before_retention: 'It reaches back to before the materialization began, or beyond its retention.',
};

// Miss explains in words why panes do not answer a part, and what to do about it.
export function Miss({ reason, detail, node, materializations }) {
  const every = materializations && materializations[0] ? materializations[0].every : '15s';
  return html`<div class="miss">
    ${detail && html`<p>${format.readable(detail)}</p>`}
    ${advice[reason] && html`<p>${advice[reason]}</p>`}
    ${reason === 'no_materialization' && node && html`<p>With an entry like this one in tidemark.yml it becomes warm:</p><pre class="snippet">${`materializations:
  - name: a_name
    expr: ${yamlText(node)}
    every: ${every}`}</pre>`}
  </div>`;
}

// yamlText writes a text as YAML reads it on one line.
function yamlText(text) {
  return /^[a-z][^:#{}[\]"'\n]*$/i.test(text) ? text : `'${text.replace(/'/g, "''")}'`;
}

const missed = /not answerable from panes \((\w+)\)(?::\s*(.*))?/s;
const position = /(\d+):(\d+): parse error: (.*)/s;

// frontierIn returns the time, in ms, up to which what was asked is published, if an error says that it is not beyond that.
export function frontierIn(error) {
  const miss = missed.exec(error.message || '');
  if (!miss || miss[1] !== 'unpublished') return null;
  const frontier = /frontier at (-?\d+)/.exec(miss[2] || '');
  const open = /open bucket ending at (-?\d+)/.exec(miss[2] || '');
  const at = frontier ? Number(frontier[1]) : open ? Number(open[1]) - 1 : Infinity; // an open bucket holds its end
  return Math.abs(at) < 8.64e15 ? at : null;
}

// QueryError shows why a query has no answer: where it cannot be read, or why panes do not answer it.
export function QueryError({ error, expr, onEnd, onExplain, materializations }) {
  const miss = missed.exec(error.message);
  if (miss) {
    const frontier = frontierIn(error);
    const actions = html`
      ${frontier !== null && html`<button type="button" onClick=${() => onEnd(frontier)}>Ask up to ${format.time(frontier)}</button>`}
      <button type="button" onClick=${onExplain}>Explain</button>`;
    return html`<${Note} kind="bad" title=${`No answer from panes: ${miss[1]}`} actions=${actions}>
      <${Miss} reason=${miss[1]} detail=${miss[2]} node=${expr} materializations=${materializations} />
    </${Note}>`;
  }
  const at = position.exec(error.message);
  if (at) {
    const line = expr.split('\n')[Number(at[1]) - 1] || '';
    return html`<${Note} kind="bad" title="The expression cannot be read">
      <p>${at[3]}</p>
      <pre class="snippet">${line}${'\n'}${' '.repeat(Math.max(Number(at[2]) - 1, 0))}^</pre>
    </${Note}>`;
  }
  return html`<${Note} kind="bad" title=${`Error: ${error.type}`}>${error.message}</${Note}>`;
}
