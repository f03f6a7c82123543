// This server's API. Addresses are relative to the page, so that any prefix in front of it is in front of them too.

export class ApiError extends Error {
  constructor(message, type, status) {
    super(message);
    this.type = type;
    this.status = status;
  }
}

// get reads; params with an empty value are left out, and an array gives its name several times.
export function get(path, params, signal) {
  const query = form(params).toString();
  return call(path + (query ? '?' + query : ''), { signal });
}

// post acts, or reads with parameters that are too long for an address.
export function post(path, params, signal) {
  return call(path, { method: 'POST', body: form(params), signal });
}

// postJSON acts with a JSON body.
export function postJSON(path, body, signal) {
  return call(path, { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' }, signal });
}

function form(params = {}) {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const v of Array.isArray(value) ? value : [value]) {
      if (v !== undefined && v !== null && v !== '') out.append(name, String(v));
    }
  }
  return out;
}

async function call(path, init) {
  let answer;
  const began = performance.now();
  try {
    answer = await fetch(new URL(path, document.baseURI), { ...init, credentials: 'same-origin' });
  } catch (err) {
    if (err.name === 'AbortError') throw err;
    throw new ApiError('The server does not answer. Is it running?', 'network', 0);
  }
  let body;
  try {
    body = await answer.json();
  } catch (err) {
    if (err.name === 'AbortError') throw err;
    throw new ApiError(`${path.split('?')[0]}: status ${answer.status} with an answer that is no JSON`, 'network', answer.status);
  }
  if (!answer.ok || body.status !== 'success') {
    throw new ApiError(body.error || `status ${answer.status}`, body.errorType || 'unknown', answer.status);
  }
  return {
    data: body.data,
    warnings: body.warnings || [],
    infos: body.infos || [],
    header: (name) => answer.headers.get(name),
    took: performance.now() - began,
  };
}
