// The frame around the screens: which one is shown, the way between them, the state of the server, the theme.
import { html, render, useEffect, useRef, useState } from './html.js';
import { get } from './api.js';
import { href, useRoute } from './route.js';
import { useLoad } from './load.js';
import { Icon, Note } from './parts.js';
import * as format from './format.js';
import { Experiments } from './experiments.js';
import { Experiment } from './experiment.js';
import { Query } from './query.js';
import { LogScreen } from './log.js';
import { Tasks } from './tasks.js';

// The screens: name in the address, title, component, and under which of them it stands in the list of screens, if not its own.
const screens = [
  ['experiments', 'Experiments', Experiments],
  ['query', 'Query', Query],
  ['log', 'Log', LogScreen],
  ['tasks', 'Tasks', Tasks],
  ['experiment', 'Experiment', Experiment, 'experiments'],
];
const first = 'experiments';

function App() {
  const route = useRoute();
  const [name, title, Screen, under = name] = screens.find(([n]) => n === route.screen) || screens.find(([n]) => n === first);
  const main = useRef(null);
  const shown = useRef(name);
  useEffect(() => {
    document.title = `${route.arg || title} – Tidemark`;
    // Whoever does not see the page is told that it is another one.
    if (shown.current !== name) main.current.focus();
    shown.current = name;
  }, [name, route.arg]);
  return html`
    <a class="skip" href="#main" onClick=${(e) => {
      e.preventDefault(); // the fragment is the state
      main.current.focus();
    }}>Skip to content</a>
    <${Header} screen=${under} />
    <main id="main" tabindex="-1" ref=${main}>
      <${Screen} key=${name} route=${route} />
    </main>`;
}

function Header({ screen }) {
  const status = useLoad((signal) => get('api/v1/status/log', {}, signal), [], 10_000);
  const build = useLoad((signal) => get('api/v1/status/buildinfo', {}, signal), []);
  return html`
    <header class="top">
      <div class="top-row">
        <a class="brand" href=${href(first)}><img src="ui/icon.svg" alt="" width="24" height="24" />Tidemark</a>
        <nav aria-label="Screens"><ul>
          ${screens.filter(([, , , under]) => !under).map(([name, title]) => html`<li key=${name}>
            <a href=${href(name)} aria-current=${name === screen ? 'page' : undefined}>${title}</a>
          </li>`)}
        </ul></nav>
        <div class="top-end">
          <${Health} status=${status} />
          ${build.data && html`<span class="version faint" title=${'revision ' + (build.data.revision || 'unknown')}>${build.data.version}</span>`}
          <${Theme} />
        </div>
      </div>
    </header>
    <${Unready} status=${status} />`;
}

function Health({ status }) {
  if (status.error) return html`<span class="health bad"><${Icon} name="bad" />unreachable</span>`;
  if (!status.data) return null;
  return status.data.ready
    ? html`<span class="health good"><${Icon} name="good" />ready</span>`
    : html`<span class="health warn"><${Icon} name="warn" />not ready</span>`;
}

function Unready({ status }) {
  if (status.error) {
    const since = status.at ? ' What you see was read ' + format.time(status.at) + '.' : '';
    return html`<div class="under-top"><${Note} kind="bad" title="The server cannot be reached">${status.error.message}${since}</${Note}></div>`;
  }
  if (!status.data || status.data.ready) return null;
  return html`<div class="under-top"><${Note} kind="warn" title="The server is not ready">
    <ul class="plain">${status.data.reasons.map((r) => html`<li key=${r}>${r}</li>`)}</ul>
  </${Note}></div>`;
}

const themes = ['system', 'light', 'dark'];

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme || 'system');
  const next = () => {
    const to = themes[(themes.indexOf(theme) + 1) % themes.length];
    if (to === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = to;
    try {
      localStorage.setItem('tidemark.theme', to);
    } catch {
      // Storage may be forbidden; the choice then ends with the page.
    }
    set(to);
    dispatchEvent(new Event('themechange'));
  };
  return html`<button type="button" class="icon-button" onClick=${next} title=${`Theme: ${theme}`}>
    <${Icon} name=${theme} /><span class="hidden">Theme: ${theme}. Change</span>
  </button>`;
}

render(html`<${App} />`, document.getElementById('app'));
