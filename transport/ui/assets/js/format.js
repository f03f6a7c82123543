// Numbers and times as people read them. Times are shown in the browser's zone.

const grouped = new Intl.NumberFormat('en-US');

export function count(n) {
  return n === null || n === undefined ? '–' : grouped.format(n);
}

// short keeps three digits: 1.25M.
export function short(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return '–';
  for (const [size, unit] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (Math.abs(n) >= size) return digits(n / size) + unit;
  }
  return digits(n);
}

function digits(n) {
  const a = Math.abs(n);
  if (a === 0) return '0';
  if (a < 0.001) return n.toExponential(1);
  return String(Number(n.toPrecision(3)));
}

export function bytes(n) {
  if (n === null || n === undefined) return '–';
  for (const [size, unit] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']]) {
    if (n >= size) return digits(n / size) + ' ' + unit;
  }
  return n + ' B';
}

const units = [['d', 86400e3], ['h', 3600e3], ['m', 60e3], ['s', 1e3]];

// duration renders milliseconds with at most two units: 2h 5m.
export function duration(ms) {
  if (ms === null || ms === undefined) return '–';
  const sign = ms < 0 ? '−' : '';
  let rest = Math.abs(ms);
  if (rest < 1000) return sign + Math.round(rest) + 'ms';
  const parts = [];
  for (const [unit, size] of units) {
    const n = Math.floor(rest / size);
    rest -= n * size;
    if (n > 0) parts.push(n + unit);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return sign + parts.join(' ');
}

const pattern = /(\d+(?:\.\d+)?)(ms|[smhdwy])/y;
const sizes = { ms: 1, s: 1e3, m: 60e3, h: 3600e3, d: 86400e3, w: 604800e3, y: 31536000e3 };

// parseDuration reads a duration as PromQL has it, or plain seconds; null if it is none.
export function parseDuration(text) {
  const t = text.trim();
  if (/^\d+(\.\d+)?$/.test(t)) return Number(t) * 1000;
  let total = 0;
  pattern.lastIndex = 0;
  while (pattern.lastIndex < t.length) {
    const from = pattern.lastIndex;
    const m = pattern.exec(t);
    if (!m || m.index !== from) return null;
    total += Number(m[1]) * sizes[m[2]];
  }
  return total > 0 ? total : null;
}

// promDuration renders milliseconds as PromQL takes them.
export function promDuration(ms) {
  for (const unit of ['d', 'h', 'm', 's']) {
    if (ms % sizes[unit] === 0) return ms / sizes[unit] + unit;
  }
  return ms + 'ms';
}

const two = (n) => String(n).padStart(2, '0');

export function day(ms) {
  const d = new Date(ms);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
}

export function clock(ms) {
  const d = new Date(ms);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

// time leaves the day out if it is today's.
export function time(ms, now = Date.now()) {
  if (ms === null || ms === undefined) return '–';
  if (!Number.isFinite(ms) || Math.abs(ms) > 8.64e15) return 'end of time';
  return day(ms) === day(now) ? clock(ms) : `${day(ms)} ${clock(ms)}`;
}

// readable puts a time in the place of each number in text that is one in ms.
export function readable(text) {
  return text.replace(/\b1\d{12}\b/g, (ms) => time(Number(ms)));
}

// ago says how long before now a time was.
export function ago(ms, now = Date.now()) {
  if (ms === null || ms === undefined) return 'never';
  const d = now - ms;
  if (d < -1000) return 'in ' + duration(-d).split(' ')[0];
  return d < 1000 ? 'just now' : duration(d).split(' ')[0] + ' ago';
}

// value renders a sample's value, which comes as text.
export function value(text) {
  const v = Number(text);
  if (!Number.isFinite(v)) return text === '+Inf' ? '+Inf' : text;
  if (Number.isInteger(v) && Math.abs(v) < 1e15) return grouped.format(v);
  return String(Number(v.toPrecision(6)));
}
