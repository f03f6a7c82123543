// Runs before the first paint, so that a chosen theme does not flash in the other one's colours. Without a choice the
// system's is in force.
(function () {
  try {
    const chosen = localStorage.getItem('tidemark.theme');
    if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden; then the system's theme stays.
  }
})();
