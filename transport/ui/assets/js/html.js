// Preact with tagged templates in place of a compiler. A value in a template becomes text or an attribute's value, whatever it
// contains: nothing here turns text into markup.
import { h } from '../vendor/preact.js';
import htm from '../vendor/htm.js';

export { Fragment, render } from '../vendor/preact.js';
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from '../vendor/preact-hooks.js';
export const html = htm.bind(h);
