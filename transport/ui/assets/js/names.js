// Names of metrics and labels and values of labels, from the API, for completion. Answers are kept for half a minute.
import { get } from './api.js';
import { quote } from './parts.js';
import { rank, windows, words } from './promql.js';

const keep = 30_000;
const most = 5_000; // of a list that is asked for
const shown = 12;
const asked = new Map();

function list(path, params) {
  const key = path + '?' + new URLSearchParams(params);
  const old = asked.get(key);
  if (old && Date.now() - old.at < keep) return old.answer;
  const answer = get(path, params).then((a) => a.data);
  asked.set(key, { at: Date.now(), answer });
  answer.catch(() => asked.delete(key));
  if (asked.size > 200) asked.delete(asked.keys().next().value);
  return answer;
}

export function metricNames() {
  return list('api/v1/label/__name__/values', { limit: most });
}

const matching = (metric) => (metric ? { 'match[]': `{__name__=${quote(metric)}}` } : {});

// suggestions returns what could stand at the place that context describes: [{ text, kind, insert }].
export async function suggestions(place) {
  switch (place.kind) {
    case 'metric': {
      if (!place.prefix) return [];
      const names = (await metricNames()).map((text) => ({ text, kind: 'metric', insert: metricText(text) }));
      return rank(names.concat(words), place.prefix, shown);
    }
    case 'label': {
      const names = await list('api/v1/labels', { ...matching(place.metric), limit: most });
      return rank(names.filter((n) => n !== '__name__').map((text) => ({ text, kind: 'label', insert: labelText(text) })), place.prefix, shown);
    }
    case 'value': {
      const values = await list(`api/v1/label/${encodeURIComponent(place.label)}/values`, { ...matching(place.metric), limit: most });
      return rank(values.map((text) => ({ text, kind: 'value', insert: quote(text).slice(1, -1) })), place.prefix, shown);
    }
    case 'duration':
      return rank(windows, place.prefix, shown);
    default:
      return [];
  }
}

const plain = /^[a-zA-Z_:][a-zA-Z0-9_:]*$/;
const metricText = (name) => (plain.test(name) ? name : `{${quote(name)}}`);
const labelText = (name) => (plain.test(name) ? name : quote(name));
