// What may be written at the cursor of a PromQL expression. This is no parser: it looks at what stands before the cursor, so
// that it also works while the expression is unfinished.

export const functions = ('abs absent absent_over_time avg_over_time ceil changes clamp clamp_max clamp_min count_over_time day_of_month ' +
  'day_of_week day_of_year days_in_month delta deriv exp first_over_time floor histogram_avg histogram_count histogram_fraction ' +
  'histogram_quantile histogram_sum hour idelta increase irate label_join label_replace last_over_time ln log10 log2 max_over_time ' +
  'min_over_time minute month pi predict_linear present_over_time quantile_over_time rate resets round scalar sgn sort sort_desc sqrt ' +
  'stddev_over_time stdvar_over_time sum_over_time time timestamp vector year').split(' ');
export const aggregations = 'avg bottomk count count_values group max min quantile stddev stdvar sum topk'.split(' ');
const keywords = 'and or unless by without on ignoring group_left group_right offset bool'.split(' ');
const durations = '30s 1m 5m 10m 15m 30m 1h 6h 1d'.split(' ');

const word = /[a-zA-Z_:][a-zA-Z0-9_:]*$/;

// context says what is being written at the end of text: { kind, prefix, from, metric, label }.
// kind is metric, label, value, duration or none.
export function context(text) {
  const open = openBrace(text);
  if (open.quote) {
    const inner = text.slice(open.quote.from + 1);
    if (open.brace < 0 || !open.quote.label) return { kind: 'none' };
    return { kind: 'value', prefix: inner, from: open.quote.from + 1, metric: open.metric, label: open.quote.label };
  }
  const prefix = (word.exec(text) || [''])[0];
  const from = text.length - prefix.length;
  if (open.bracket >= 0) {
    const typed = text.slice(open.bracket + 1);
    return /^[0-9a-z]*$/.test(typed) ? { kind: 'duration', prefix: typed, from: open.bracket + 1 } : { kind: 'none' };
  }
  if (open.brace >= 0) {
    return /[=~!]\s*$/.test(text.slice(0, from)) ? { kind: 'none' } : { kind: 'label', prefix, from, metric: open.metric };
  }
  const grouping = /\b(?:by|without|on|ignoring|group_left|group_right)\s*\(\s*(?:[a-zA-Z0-9_]+\s*,\s*)*$/.test(text.slice(0, from));
  if (grouping) return { kind: 'label', prefix, from, metric: '' };
  if (/[0-9.]$/.test(text.slice(0, from))) return { kind: 'none' };
  return { kind: 'metric', prefix, from };
}

// openBrace walks over text and tells which brackets and quotes are open at its end.
function openBrace(text) {
  let brace = -1;
  let bracket = -1;
  let metric = '';
  let quote = null;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quote) {
      if (c === '\\' && quote.char !== '`') i++;
      else if (c === quote.char) quote = null;
    } else if (c === '"' || c === "'" || c === '`') {
      const label = /([a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=|!=|=~|!~)\s*$/.exec(text.slice(Math.max(brace, 0), i));
      quote = { char: c, from: i, label: label ? label[1] : '' };
    } else if (c === '#') {
      const end = text.indexOf('\n', i);
      if (end < 0) break;
      i = end;
    } else if (c === '{') {
      brace = i;
      metric = (word.exec(text.slice(0, i)) || [''])[0];
    } else if (c === '}') brace = -1;
    else if (c === '[') bracket = i;
    else if (c === ']') bracket = -1;
  }
  return { brace, bracket, metric, quote };
}

// rank orders candidates: those that begin with the prefix first, then those that contain it; at most limit.
export function rank(candidates, prefix, limit) {
  const p = prefix.toLowerCase();
  const begin = [];
  const inside = [];
  for (const c of candidates) {
    const at = c.text.toLowerCase().indexOf(p);
    if (at === 0) begin.push(c);
    else if (at > 0) inside.push(c);
  }
  return begin.concat(inside).slice(0, limit);
}

export const words = [
  ...aggregations.map((text) => ({ text, kind: 'aggregation', insert: text + '(' })),
  ...functions.map((text) => ({ text, kind: 'function', insert: text + '(' })),
  ...keywords.map((text) => ({ text, kind: 'keyword', insert: text })),
];
export const windows = durations.map((text) => ({ text, kind: 'window', insert: text }));
