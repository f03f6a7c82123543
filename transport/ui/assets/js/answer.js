// The answer to a query: where it came from, the graph, the table.
import { html, useMemo, useState } from './html.js';
import { Badge, Empty, Note, Scroll, SeriesName, Time, seriesText } from './parts.js';
import { Chart } from './chart.js';
import * as format from './format.js';

const plotted = 60; // lines in a graph
const page = 200; // rows of a table at first

const meaning = {
  warm: 'from published panes or recorded windows',
  live: 'some steps from panes that are still open',
  hybrid: 'partly from panes, partly from raw samples',
  local: "from this server's exact copy of the samples",
  upstream: 'forwarded whole to the Prometheus behind this server',
};

// Origin says where the answer came from and how far it is proven.
export function Origin({ answer, onExplain }) {
  const route = answer.header('X-Tidemark-Route');
  const seq = answer.header('X-Tidemark-Seq');
  const through = answer.header('X-Tidemark-Complete-Through');
  const stats = answer.data.stats && answer.data.stats.tidemark;
  return html`<div class="origin" role="status">
    ${route && html`<${Badge} kind=${'route ' + route} title=${meaning[route]}>${route}</${Badge}>`}
    <span class="origin-words">${meaning[route] || 'no route given'}</span>
    ${through && html`<span>complete through <${Time} ms=${Number(through)} /></span>`}
    ${seq && html`<span>log position ${format.count(Number(seq))}</span>`}
    <span>${format.count(size(answer.data))} series in ${format.duration(answer.took)}</span>
    ${stats && stats.steps && html`<span>${Object.entries(stats.steps).filter(([, n]) => n > 0).map(([r, n]) => `${format.count(n)} ${n === 1 ? 'step' : 'steps'} ${r}`).join(', ')}</span>`}
    ${stats && stats.miss && html`<button type="button" class="small" title="Why panes did not answer all of it" onClick=${onExplain}>${stats.miss}</button>`}
    ${stats && stats.sketchError > 0 && html`<span>${format.count(stats.sketchedLeaves)} ${stats.sketchedLeaves === 1 ? 'part' : 'parts'} from sketches, exact to ${stats.sketchError * 100} %</span>`}
    ${stats && html`<${Counts} stats=${stats} />`}
  </div>`;
}

function size(data) {
  return data.resultType === 'vector' || data.resultType === 'matrix' ? data.result.length : 1;
}

const apart = ['seq', 'completeThroughMs', 'sketchError', 'sketchedLeaves']; // shown elsewhere

// Counts shows the figures of an answer, whatever they are called.
function Counts({ stats }) {
  const figures = Object.entries(stats).filter(([name, v]) => typeof v === 'number' && v > 0 && !apart.includes(name));
  const nested = Object.entries(stats).filter(([name, v]) => v && typeof v === 'object' && !Array.isArray(v) && name !== 'steps');
  for (const [name, of] of nested) {
    for (const [k, v] of Object.entries(of)) if (typeof v === 'number' && v > 0) figures.push([`${name} ${k}`, v]);
  }
  if (figures.length === 0) return null;
  return html`<details class="counts"><summary>What it took</summary><dl>${figures.map(([name, v]) => html`<div key=${name}><dt>${words(name)}</dt><dd>${format.count(v)}</dd></div>`)}</dl></details>`;
}

const words = (name) => name.replace(/([A-Z])/g, ' $1').replace(/_/g, ' ').toLowerCase();

export function Notices({ answer }) {
  return html`
    ${answer.warnings.map((w) => html`<${Note} key=${w} kind="warn">${w}</${Note}>`)}
    ${answer.infos.map((w) => html`<${Note} key=${w} kind="info">${w}</${Note}>`)}`;
}

export function Graph({ data, times, onZoom }) {
  const [off, setOff] = useState(new Set());
  const lines = useMemo(() => data.result.slice(0, plotted).map((s, i) => ({
    label: seriesText(s.metric),
    metric: s.metric,
    times: (s.values || []).map(([t]) => Math.round(t * 1000)),
    values: (s.values || []).map(([, v]) => Number(v)),
    hidden: off.has(i),
  })), [data, off]);
  if (data.resultType !== 'matrix') return html`<${Instant} data=${data} />`;
  if (data.result.length === 0) return html`<${Nothing} />`;
  const toggle = (i, alone) => {
    if (alone) {
      const only = lines.every((l, k) => l.hidden === (k !== i));
      setOff(new Set(only ? [] : lines.map((_, k) => k).filter((k) => k !== i)));
      return;
    }
    const next = new Set(off);
    if (!next.delete(i)) next.add(i);
    setOff(next);
  };
  return html`
    <${Chart} lines=${lines} from=${times.start} to=${times.end} height=${340} onZoom=${onZoom} label=${`Graph of ${lines.length} series; the list below names them`} />
    <p class="hint">Drag over the graph to look closer. A click on a series hides it; with Shift it is shown alone.</p>
    ${data.result.length > lines.length && html`<${Note} kind="info">Drawn are the first ${lines.length} of ${format.count(data.result.length)} series.</${Note}>`}
    <ul class="legend">${lines.map((line, i) => html`<li key=${line.label}>
      <button type="button" aria-pressed=${line.hidden ? 'false' : 'true'} class=${line.hidden ? 'off' : ''} onClick=${(e) => toggle(i, e.shiftKey)}>
        <span class="swatch" style=${{ background: `var(--s${i % 10})` }}></span><${SeriesName} metric=${line.metric} />
        <span class="legend-value">${line.values.length ? format.short(line.values[line.values.length - 1]) : '–'}</span>
      </button>
    </li>`)}</ul>`;
}

export function Nothing() {
  return html`<${Empty} title="No series">The query was answered, and nothing matches it at these times.</${Empty}>`;
}

export function Instant({ data }) {
  const [most, setMost] = useState(page);
  if (data.resultType === 'scalar' || data.resultType === 'string') {
    return html`<p class="scalar"><span class="faint">${data.resultType}</span> <span class="mono">${data.resultType === 'scalar' ? format.value(data.result[1]) : data.result[1]}</span></p>`;
  }
  if (data.result.length === 0) return html`<${Nothing} />`;
  const rows = data.result.slice(0, most);
  return html`
    <${Scroll} label="Result">
      <table class="result"><thead><tr><th scope="col">Series</th><th scope="col" class="num">Value</th></tr></thead>
        <tbody>${rows.map((s) => html`<tr key=${seriesText(s.metric)}><td><${SeriesName} metric=${s.metric} /></td><td class="num mono"><${Value} of=${s} /></td></tr>`)}</tbody>
      </table>
    </${Scroll}>
    ${data.result.length > most && html`<p class="more"><button type="button" onClick=${() => setMost(most + 5 * page)}>Show more (${format.count(data.result.length - most)} left)</button></p>`}`;
}

// Value shows the value of a vector's element, or all of a range of samples.
function Value({ of }) {
  if (of.value) return html`<span title=${of.value[1]}>${format.value(of.value[1])}</span>`;
  if (of.values) return of.values.map(([t, v]) => html`<div key=${t}>${format.value(v)} <span class="faint">@ ${format.time(t * 1000)}</span></div>`);
  if (of.histogram) return html`<span>histogram: ${of.histogram[1].count} observations, sum ${of.histogram[1].sum}</span>`;
  return '–';
}
