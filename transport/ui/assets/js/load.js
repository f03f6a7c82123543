// Reading from the API in a component: the newest answer, the last error, and whether a request is under way.
import { useCallback, useEffect, useRef, useState } from './html.js';

// useLoad calls load(signal) when one of deps changes, every so many milliseconds if asked to, and when reload is called. What
// was read stays while it is read again, also when that fails. A hidden page asks for nothing.
export function useLoad(load, deps, every = 0) {
  const [state, set] = useState({ answer: null, error: null, busy: true, at: 0 });
  const current = useRef(null);
  const latest = useRef(load);
  latest.current = load;

  const run = useCallback(() => {
    if (current.current) current.current.abort();
    const mine = new AbortController();
    current.current = mine;
    set((s) => ({ ...s, busy: true }));
    latest.current(mine.signal).then(
      (answer) => {
        if (current.current === mine) set({ answer, error: null, busy: false, at: Date.now() });
      },
      (error) => {
        if (current.current === mine && error.name !== 'AbortError') set((s) => ({ ...s, error, busy: false }));
      },
    );
    return mine;
  }, []);

  useEffect(() => {
    run();
    return () => {
      if (current.current) current.current.abort();
      current.current = null;
    };
  }, deps);

  useEffect(() => {
    if (!every) return undefined;
    const again = () => {
      if (!document.hidden) run();
    };
    const timer = setInterval(again, every);
    document.addEventListener('visibilitychange', again);
    return () => {
      clearInterval(timer);
      document.removeEventListener('visibilitychange', again);
    };
  }, [every, run]);

  return { ...state, data: state.answer ? state.answer.data : null, reload: run };
}

// useAction runs one action at a time and keeps how it ended: { busy, text, error }.
export function useAction() {
  const [state, set] = useState({ busy: '', text: '', error: null });
  const run = useCallback(async (name, act) => {
    set({ busy: name, text: '', error: null });
    try {
      set({ busy: '', text: await act(), error: null });
      return true;
    } catch (error) {
      set({ busy: '', text: '', error });
      return false;
    }
  }, []);
  return { ...state, run };
}

// useDebounced returns value once it has not changed for so many milliseconds.
export function useDebounced(value, ms) {
  const [settled, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
