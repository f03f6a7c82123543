// The bounds within which the service takes writes and answers, as its flags have set them.
import { html } from './html.js';
import { get } from './api.js';
import { useLoad } from './load.js';
import { Failure, Loading, Panel } from './parts.js';
import * as format from './format.js';

// Groups of flags: name, in words, and how the value is shown if it is not one of bytes or of time.
const groups = [
  ['One write', [
    ['write.max-body-bytes', 'Body, as it comes'],
    ['write.max-decoded-bytes', 'Body, decompressed'],
    ['write.max-series', 'Series', count],
    ['write.max-samples', 'Samples', count],
    ['write.max-labels', 'Labels of a series', count],
    ['write.max-label-name-bytes', 'Bytes of a label name', count],
    ['write.max-label-value-bytes', 'Bytes of a label value', count],
    ['write.max-future', 'Ahead of the clock', orNone],
  ]],
  ['All writes', [
    ['write.max-inflight-bytes', 'Memory of those under way'],
    ['write.max-inflight-requests', 'Under way', count],
    ['write.max-client-share', 'Of them, one client', share],
    ['write.rate-limit', 'Requests a second', orNone],
    ['write.max-experiments', 'Experiments', countOrNone],
    ['write.max-series-per-experiment', 'Series of an experiment', countOrNone],
    ['log.min-free-bytes', 'Free on disk, at least'],
    ['projection.max-lag', 'A projection is behind', orNone],
  ]],
  ['Queries and connections', [
    ['query.max-concurrency', 'Queries at one time', count],
    ['query.timeout', 'Time for a query'],
    ['query.max-samples', 'Samples of a query', count],
    ['storage.remote.read-concurrent-limit', 'Remote reads at one time', count],
    ['storage.remote.read-sample-limit', 'Samples of a remote read', count],
    ['web.max-connections', 'Connections, half of them for one address', count],
    ['web.read-timeout', 'Time for a request to arrive'],
  ]],
];

function count(text) {
  const n = Number(text);
  return text.trim() !== '' && Number.isFinite(n) ? format.count(n) : text;
}

function orNone(text) {
  return /^0+(\.0*)?[a-z]*$/i.test(text) ? 'no limit' : plain(text);
}

// plain writes 10m0s as 10m and 16MiB as 16 MiB.
function plain(text) {
  return text.replace(/([hm])0m0s$/, '$1').replace(/([hm])0s$/, '$1').replace(/(\d)([KMGT]iB|B)\b/g, '$1 $2');
}

function countOrNone(text) {
  return Number(text) === 0 ? 'no limit' : count(text);
}

function share(text) {
  return `${format.value(String(Number(text) * 100))} %`;
}

export function Limits() {
  const flags = useLoad((signal) => get('api/v1/status/flags', {}, signal), []);
  return html`<${Panel} title="Limits">
    ${flags.error && html`<${Failure} error=${flags.error} what="The flags cannot be read" retry=${flags.reload} />`}
    ${!flags.data && !flags.error && html`<${Loading} />`}
    ${flags.data && html`<div class="limits">${groups.map(([title, rows]) => html`<section key=${title}><h3>${title}</h3><dl>
      ${rows.filter(([flag]) => flag in flags.data).map(([flag, words, show = plain]) => html`<div key=${flag}><dt title=${'--' + flag}>${words}</dt><dd>${show(flags.data[flag])}</dd></div>`)}
    </dl></section>`)}</div>
    <p class="hint">What exceeds them is refused, and counted in the metrics. Each is a flag of the service; point at a name to see it.</p>`}
  </${Panel}>`;
}
