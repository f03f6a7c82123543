// The colours of the style sheet for what is drawn on a canvas, in the theme that is in force.
import { useEffect, useState } from './html.js';

// Series take these in turn. They differ in lightness as well as in hue.
export const palette = 10;

let probe = null;

export function colour(name) {
  if (!probe) {
    probe = document.createElement('span');
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export function seriesColour(i) {
  return colour('s' + (i % palette));
}

// useTheme changes its value whenever the theme does, so that what was drawn is drawn again.
export function useTheme() {
  const [n, set] = useState(0);
  useEffect(() => {
    const changed = () => set((k) => k + 1);
    const system = matchMedia('(prefers-color-scheme: dark)');
    system.addEventListener('change', changed);
    addEventListener('themechange', changed);
    return () => {
      system.removeEventListener('change', changed);
      removeEventListener('themechange', changed);
    };
  }, []);
  return n;
}
