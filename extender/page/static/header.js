// The header: health, facts and totals.

import { showAsOf } from './as_of.js';
import { age, byId, el, figure, fill, plural } from './dom.js';

/** Keep it current. */
export function showHeader(store) {
  store.addEventListener('status', () => showStatus(store));
  store.addEventListener('totals', () => showTotals(store.sections.totals));
  showAsOf(store, () => showStatus(store));
}

function showStatus({ lost, heard, sections: { status } }) {
  const health = byId('health');
  const fault = status?.fault;
  const told = lost ? 'no connection to Kerf' : !status ? 'connecting' : fault || status.degraded[0] || 'ready';
  const kind = lost ? 'bad' : !status ? 'waiting' : fault ? 'bad' : status.degraded.length ? 'poor' : 'good';
  if (health.textContent !== told) health.textContent = told; // screen readers would repeat an unchanged status
  health.className = `health ${kind}`;
  if (!status) return;
  const { state, ageSeconds } = status.telemetry;
  const since = lost ? (Date.now() - heard) / 1000 : 0;
  const facts = {
    Policy: [status.policy, status.ranking],
    'Learned rank': rankWords(status.model),
    ...(status.model.learning && { Learning: [status.model.learning] }),
    Mode: [status.mode],
    Queue: [status.queue ? 'on' : 'off'],
    Telemetry: [ageSeconds == null ? state : `${state}, ${age(ageSeconds + since)} old`],
    Version: [status.version],
  };
  const items = Object.entries(facts).map(([name, [value, title]]) =>
    el('div', { title }, el('dt', {}, name), el('dd', {}, value)),
  );
  fill(byId('facts'), ...items);
}

/** Which learned rank is loaded, and why it is not used, if so. */
function rankWords({ mode, sha256, reason }) {
  if (!sha256) return ['none', reason ?? 'none is loaded'];
  return [`${sha256.slice(0, 8)}, ${reason ? 'not used' : mode}`, reason ?? `loaded, mode ${mode}`];
}

/** Free GPUs that expected pods can't use, as in GPU-hours; only the leader reports them. */
function strandedTile(tile, { gpusStranded, strandedPart }) {
  if (gpusStranded == null) return tile('Stranded', 'unknown', 'reported by the leader only, if GPU-hours are counted');
  return tile('Stranded', figure(gpusStranded, 1), `${(100 * strandedPart).toFixed(1)} % of all GPUs: free, but unusable for expected pods`);
}

function asideWords(totals) {
  const said = [];
  if (totals.nodesSetAside) said.push(`, ${figure(totals.nodesSetAside)} quarantined`);
  if (totals.nodesFailing) said.push(`, pods fail on ${figure(totals.nodesFailing)}`);
  return said.join('');
}

function showTotals(totals) {
  const tile = (name, value, detail, kind = '') =>
    el('div', { class: `tile ${kind}` }, el('dt', {}, name), el('dd', {}, value), el('dd', { class: 'detail' }, detail));
  const booked = el('meter', { min: 0, max: totals.gpus || 1, value: totals.gpusBooked, 'aria-label': 'GPUs booked' });
  fill(
    byId('totals'),
    el(
      'div',
      { class: 'tile' },
      el('dt', {}, 'GPUs booked'),
      el('dd', {}, `${figure(totals.gpusBooked, 1)} of ${figure(totals.gpus)}`),
      el('dd', { class: 'detail' }, booked, totals.gpusReserved > 0 && `${figure(totals.gpusReserved, 1)} reserved`),
    ),
    tile('In use', totals.load == null ? 'unknown' : `${Math.round(100 * totals.load)} %`, 'mean load of all GPUs'),
    tile('GPUs free', figure(Math.max(totals.gpus - totals.gpusBooked - totals.gpusReserved, 0), 1), `of ${figure(totals.gpus)}`),
    strandedTile(tile, totals),
    tile('Pending', figure(totals.pendingPods), `pods without a node; ${figure(totals.waitingPods)} rejected by Kerf, ${plural(totals.reservations, 'reservation')}`),
    tile('Unhealthy', figure(totals.unhealthy), `${plural(totals.nodes, 'node')}, ${figure(totals.gpuNodes)} with GPUs${asideWords(totals)}`, totals.unhealthy || totals.nodesSetAside || totals.nodesFailing ? 'alarm' : ''),
  );
}
