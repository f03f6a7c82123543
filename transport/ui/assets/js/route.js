// The fragment of the address is the state of the page: #/screen/argument?name=value. Reload, back and a copied link give the
// same screen again.
import { useEffect, useState } from './html.js';

export function parse(fragment) {
  const text = fragment.replace(/^#\/?/, '');
  const at = text.indexOf('?');
  const path = at < 0 ? text : text.slice(0, at);
  const slash = path.indexOf('/');
  const params = Object.fromEntries(new URLSearchParams(at < 0 ? '' : text.slice(at + 1)));
  return {
    screen: slash < 0 ? path : path.slice(0, slash),
    arg: slash < 0 ? '' : decode(path.slice(slash + 1)),
    params,
  };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand
  }
}

// href makes a link. Parameters that are empty are left out, so that an address says only what differs from the default.
export function href(screen, arg = '', params = {}) {
  const given = Object.entries(params).filter(([, v]) => v !== undefined && v !== null && v !== '' && v !== false);
  const query = new URLSearchParams(given.map(([k, v]) => [k, String(v)])).toString();
  return '#/' + screen + (arg === '' ? '' : '/' + encodeURIComponent(arg)) + (query ? '?' + query : '');
}

export function go(target) {
  location.hash = target;
}

// replace changes the address without a step in the history, for what changes with every key.
export function replace(target) {
  if (target === location.hash) return;
  history.replaceState(null, '', target);
  dispatchEvent(new HashChangeEvent('hashchange'));
}

export function useRoute() {
  const [route, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => set(parse(location.hash));
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return route;
}
