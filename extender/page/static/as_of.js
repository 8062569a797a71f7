// Dims the page while its data is stale, and says how old the data is.

import { age, clock } from './dom.js';

const COUNT_MS = 1000;

/** Keep it current; `counted` is called every second while the data is stale. */
export function showAsOf(store, counted) {
  const show = () => tell(store);
  store.addEventListener('status', show);
  setInterval(() => {
    if (!store.lost && !store.sections.status?.notReady) return;
    show();
    counted();
  }, COUNT_MS);
}

function tell({ heard, lost, sections: { status } }) {
  const blind = Boolean(status?.notReady); // Kerf itself can't see the cluster
  const unknown = blind && status.staleSeconds == null; // and never has
  const past = heard > 0 && (lost || blind);
  document.body.classList.toggle('dim', past && !unknown);
  document.body.classList.toggle('unknown', unknown);
  const words = past ? sentence(heard / 1000 - (status?.staleSeconds ?? 0), { lost, unknown, why: status?.notReady }) : '';
  for (const line of document.querySelectorAll('.as-of')) {
    line.hidden = !past;
    line.textContent = words;
  }
}

/** `at` is the Unix time of what is shown. */
function sentence(at, { lost, unknown, why }) {
  if (unknown && !lost) return `Kerf has heard nothing from the API server yet and decides nothing: ${why}`;
  const asOf = unknown ? '' : `As of ${clock(at)}, ${age(Date.now() / 1000 - at)} ago: `;
  return asOf + (lost ? 'no connection to Kerf' : `Kerf has heard nothing from the API server since and decides nothing: ${why}`);
}
