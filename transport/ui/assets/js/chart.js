// A chart over time, drawn by uPlot.
import uPlot from '../vendor/uplot.js';
import { html, useEffect, useLayoutEffect, useRef, useState } from './html.js';
import { colour, seriesColour, useTheme } from './colour.js';
import * as format from './format.js';

// Chart draws lines: [{ label, times (ms, rising), values, hidden }]. onZoom(from, to) is called with ms when a span is
// dragged over. What the chart says in lines must be said in words or a table beside it, named by label.
export function Chart({ lines, from, to, height = 300, unit = format.short, onZoom, label, area = false }) {
  const box = useRef(null);
  const plot = useRef(null);
  const theme = useTheme();
  const [hover, setHover] = useState(null);
  const zoom = useRef(onZoom);
  zoom.current = onZoom;

  useLayoutEffect(() => {
    const data = align(lines);
    const options = describe({ lines, from, to, height, unit, area, width: box.current.clientWidth, zoomable: !!onZoom });
    options.hooks = {
      setCursor: [(u) => setHover(at(u, lines))],
      setSelect: [(u) => {
        if (u.select.width < 4) return;
        const [a, b] = [u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x')];
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        if (zoom.current) zoom.current(Math.round(a * 1000), Math.round(b * 1000));
      }],
    };
    plot.current = new uPlot(options, data, box.current);
    return () => {
      plot.current.destroy();
      plot.current = null;
      setHover(null);
    };
  }, [lines, from, to, height, theme, area]);

  useEffect(() => {
    const el = box.current;
    const resized = new ResizeObserver(() => {
      const width = el.clientWidth; // it may be told once more after it has left the page
      if (plot.current && width > 0 && width !== plot.current.width) plot.current.setSize({ width, height });
    });
    resized.observe(el);
    return () => resized.disconnect();
  }, [height]);

  return html`<div class="chart">
    <div ref=${box} class="plot" role="img" aria-label=${label} style=${{ minHeight: height + 'px' }}></div>
    ${hover && html`<${Tip} ...${hover} lines=${lines} unit=${unit} />`}
  </div>`;
}

const shownInTip = 12;

function Tip({ left, right, time, values, lines, unit }) {
  const rows = values.slice(0, shownInTip);
  return html`<div class="tip" style=${right === null ? { left: left + 'px' } : { right: right + 'px' }}>
    <div class="tip-time">${format.time(time)}</div>
    ${rows.map(([i, v]) => html`<div class="tip-row" key=${i}>
      <span class="swatch" style=${{ background: `var(--s${i % 10})` }}></span><span class="tip-label">${lines[i].label}</span><span class="tip-value">${unit(v)}</span>
    </div>`)}
    ${values.length > rows.length && html`<div class="faint">and ${values.length - rows.length} more</div>`}
  </div>`;
}

// at collects what lies under the cursor, the largest first.
function at(u, lines) {
  const { idx, left } = u.cursor;
  if (idx === null || idx === undefined || left < 0) return null;
  const values = [];
  lines.forEach((line, i) => {
    const v = u.data[i + 1][idx];
    if (!line.hidden && v !== null && v !== undefined) values.push([i, v]);
  });
  if (values.length === 0) return null;
  values.sort((a, b) => b[1] - a[1]);
  const x = u.bbox.left / devicePixelRatio + left;
  const beyond = x > u.width / 2;
  return { left: x + 14, right: beyond ? u.width - x + 14 : null, time: u.data[0][idx] * 1000, values };
}

// align puts all lines on one axis of times; where a line has no value it is broken.
function align(lines) {
  const all = new Set();
  for (const line of lines) for (const t of line.times) all.add(t);
  const times = [...all].sort((a, b) => a - b);
  const index = new Map(times.map((t, i) => [t, i]));
  return [
    times.map((t) => t / 1000),
    ...lines.map((line) => {
      const values = new Array(times.length).fill(null);
      line.times.forEach((t, i) => {
        const v = line.values[i];
        values[index.get(t)] = Number.isFinite(v) ? v : null;
      });
      return values;
    }),
  ];
}

function describe({ lines, from, to, height, unit, area, width, zoomable }) {
  const text = colour('muted');
  const axis = {
    stroke: text,
    grid: { stroke: colour('grid'), width: 1 },
    ticks: { stroke: colour('grid'), width: 1, size: 4 },
    font: '12px system-ui, sans-serif',
  };
  return {
    width,
    height,
    legend: { show: false },
    padding: [10, 12, 0, 0],
    cursor: { y: false, points: { size: 7 }, drag: { x: zoomable, y: false, setScale: false } },
    scales: { x: { time: true, range: from === undefined ? undefined : [from / 1000, to / 1000] }, y: { range: span } },
    axes: [
      { ...axis, space: 70, values: [
        [86400, '{YYYY}-{MM}-{DD}', null, null, null, null, null, null, 1],
        [3600, '{HH}:{mm}', '\n{YYYY}-{MM}-{DD}', null, '\n{YYYY}-{MM}-{DD}', null, null, null, 1],
        [60, '{HH}:{mm}', '\n{YYYY}-{MM}-{DD}', null, '\n{YYYY}-{MM}-{DD}', null, null, null, 1],
        [1, '{HH}:{mm}:{ss}', '\n{YYYY}-{MM}-{DD}', null, '\n{YYYY}-{MM}-{DD}', null, null, null, 1],
        [0.001, ':{ss}.{fff}', '\n{HH}:{mm}', null, '\n{HH}:{mm}', null, null, null, 1],
      ] },
      { ...axis, size: 58, values: (_, ticks) => ticks.map(unit) },
    ],
    series: [
      {},
      ...lines.map((line, i) => ({
        label: line.label,
        show: !line.hidden,
        stroke: line.colour ? colour(line.colour) : seriesColour(i),
        fill: area ? fade(line.colour ? colour(line.colour) : seriesColour(i)) : undefined,
        width: 1.6,
        points: { show: line.times.length < 2, size: 6 },
        spanGaps: false,
      })),
    ],
  };
}

function fade(rgb) {
  return rgb.replace(/^rgb\(([^)]+)\)$/, 'rgba($1, 0.16)');
}

// span leaves a little air above and below, and keeps zero in sight for what never goes below it.
function span(_, min, max) {
  if (min === null || max === null) return [0, 1];
  const low = min >= 0 && min < max * 0.6 ? 0 : min;
  const air = (max - low) * 0.06 || Math.abs(max) * 0.1 || 1;
  return [low === 0 ? 0 : low - air, max + air];
}

// Spark is a small line without axes, for a table. Its trend is decoration: the figures stand beside it.
export function Spark({ values, width = 96, height = 24 }) {
  if (!values || values.length < 2) return html`<span class="faint">–</span>`;
  const max = Math.max(...values) || 1;
  const x = (i) => (i / (values.length - 1)) * (width - 2) + 1;
  const y = (v) => height - 2 - (v / max) * (height - 4);
  const line = values.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(' ');
  return html`<svg class="spark" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} aria-hidden="true">
    <polygon points=${`${x(0)},${height - 2} ${line} ${x(values.length - 1)},${height - 2}`} /><polyline points=${line} />
  </svg>`;
}
