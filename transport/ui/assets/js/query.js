// The screen that asks: an expression, when, and the answer as a graph, a table or an explanation.
import { html, useEffect, useMemo, useState } from './html.js';
import { get, post } from './api.js';
import { go, href } from './route.js';
import { useLoad } from './load.js';
import { Editor } from './editor.js';
import { Span, gridOf, timesOf } from './span.js';
import { Graph, Instant, Notices, Origin } from './answer.js';
import { Explain, QueryError, frontierIn } from './explain.js';
import { Badge, Empty, Failure, Loading, Note, Panel, Segments, Time } from './parts.js';

const modes = [['graph', 'Graph'], ['table', 'Table'], ['explain', 'Explain']];

export function Query({ route }) {
  const params = route.params;
  const expr = params.expr || '';
  const mode = modes.some(([m]) => m === params.mode) ? params.mode : 'graph';
  const [draft, setDraft] = useState(expr);
  const [run, setRun] = useState({ n: 0, now: Date.now() }); // "now" stands still until the query is run again
  useEffect(() => setDraft(expr), [expr]);

  const list = useLoad((signal) => get('api/v1/materializations', {}, signal), [run.n]);
  const ready = list.data !== null || list.error !== null; // the grid is needed first
  const grid = useMemo(() => gridOf(list.data), [list.data]);
  const times = timesOf(params, grid, run.now);

  const change = (changes) => {
    const next = href('query', '', { ...params, expr: draft.trim(), ...changes });
    setRun((r) => ({ n: r.n + 1, now: Date.now() }));
    if (next !== location.hash) go(next);
  };

  return html`
    <h1 class="hidden">Query</h1>
    <form class="query-form" onSubmit=${(e) => {
      e.preventDefault();
      change({});
    }}>
      <div class="query-line">
        <${Editor} value=${draft} onChange=${setDraft} onRun=${() => change({})} />
        <button type="submit" class="primary">Run</button>
      </div>
      <div class="query-controls">
        <${Segments} label="Show the answer as" options=${modes} value=${mode} onChange=${(m) => change({ mode: m === 'graph' ? '' : m })} />
        <${Span} params=${params} grid=${grid} now=${run.now} ranged=${mode !== 'table'} set=${change} />
      </div>
    </form>
    ${expr === '' ? html`<${Start} list=${list} />`
    : !ready ? html`<${Loading} what="Asking" />`
    : mode === 'explain' ? html`<${Panel} title="How it is answered"><${Explain} expr=${expr} times=${times} ranged=${true} materializations=${list.data} /></${Panel}>`
    : html`<${Answer} expr=${expr} mode=${mode} times=${times} ending=${(end) => timesOf({ ...params, end }, grid, run.now)} n=${run.n} materializations=${list.data}
        pinned=${!!params.end} consistency=${params.published ? 'published' : ''}
        onZoom=${(from, to) => change({ range: rangeText(to - from), end: to, step: '' })}
        onEnd=${(end) => change({ end })} onExplain=${() => change({ mode: 'explain' })} />`}`;
}

const rangeText = (ms) => Math.max(Math.round(ms / 1000), 1) + 's';

const mostTries = 4;

// ask puts the question. Where "now" is not published yet it asks up to where it is, and says so in of.cut.
async function ask(expr, ranged, times, ending, pinned, consistency, signal) {
  for (let t = times, cut = null, n = 1; ; n++) {
    try {
      const answer = await (ranged
        ? post('api/v1/query_range', { query: expr, start: t.start / 1000, end: t.end / 1000, step: t.step / 1000, stats: 'true', consistency }, signal)
        : post('api/v1/query', { query: expr, time: t.time / 1000, stats: 'true', consistency }, signal));
      return { ...answer, data: { ...answer.data, of: { ranged, times: t, cut } } };
    } catch (error) {
      const frontier = frontierIn(error);
      if (pinned || frontier === null || frontier >= t.end || n === mostTries) throw error;
      cut = frontier;
      t = ending(frontier);
    }
  }
}

function Answer({ expr, mode, times, ending, pinned, consistency, n, onZoom, onEnd, onExplain, materializations }) {
  const ranged = mode === 'graph';
  const deps = [expr, ranged, n, ranged && times.start, ranged && times.step, times.end, consistency];
  const asked = useLoad((signal) => ask(expr, ranged, times, ending, pinned, consistency, signal), deps);
  if (asked.error) {
    return html`<${QueryError} error=${asked.error} expr=${expr} onEnd=${onEnd} onExplain=${onExplain} materializations=${materializations} />`;
  }
  const of = asked.data && asked.data.of;
  if (!of || of.ranged !== ranged) return html`<${Loading} what="Asking" />`;
  return html`<section class=${'panel answer' + (asked.busy ? ' busy' : '')} aria-label="Answer" aria-busy=${asked.busy ? 'true' : 'false'}>
    <${Origin} answer=${asked.answer} onExplain=${onExplain} />
    <div class="panel-body">
      ${of.cut !== null && html`<${Note} kind="info">What is later than <${Time} ms=${of.cut} /> is not published yet; the answer ends there. A barrier, later samples or the clock publish more.</${Note}>`}
      <${Notices} answer=${asked.answer} />
      ${ranged ? html`<${Graph} key=${n} data=${asked.data} times=${of.times} onZoom=${onZoom} />` : html`<${Instant} data=${asked.data} />`}
    </div>
  </section>`;
}

// Start is shown before anything was asked: what could be.
function Start({ list }) {
  if (list.error) return html`<${Failure} error=${list.error} what="The materializations cannot be read" retry=${list.reload} />`;
  if (!list.data) return html`<${Loading} />`;
  if (list.data.length === 0) {
    return html`<${Panel} title="Materializations"><${Empty} title="Nothing is precomputed yet">Add materializations or rule files to tidemark.yml and reload; then their expressions are answered from panes.</${Empty}></${Panel}>`;
  }
  return html`<${Panel} title="Ask one of the materializations" flush><ul class="starts">
    ${list.data.map((m) => html`<li key=${m.name}><a href=${href('query', '', { expr: m.expr })}>
      <span class="starts-name">${m.name}</span><code>${m.expr}</code>
      <span class="faint">every ${m.every}, ${m.frontier_ms === null ? 'nothing published' : html`published through <${Time} ms=${m.frontier_ms} />`}</span>
      <${Badge} kind=${m.state === 'serving' ? 'good' : 'warn'}>${m.state}</${Badge}>
    </a></li>`)}
  </ul></${Panel}>`;
}
