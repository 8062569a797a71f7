// What changes all the time: health, facts, totals, pods that wait, and decisions.

import { age, byId, clock, el, figure, fill, link, percent, plural, table } from './dom.js';

const SHOWN_DECISIONS = 40;

/** Keep all of it current. */
export function showLists(store) {
  store.addEventListener('status', () => showStatus(store));
  store.addEventListener('totals', () => showTotals(store.totals));
  store.addEventListener('waiting', () => showWaiting(store.waiting));
  store.addEventListener('decisions', () => showDecisions(store.decisions));
  setInterval(() => store.waiting && showWaiting(store.waiting), 10_000);
}

function showStatus({ connected, status }) {
  const health = byId('health');
  const fault = status?.fault;
  const told = !connected ? 'no connection to Kerf' : !status ? 'connecting' : fault || status.degraded[0] || 'deciding';
  const kind = !connected ? 'bad' : !status ? 'waiting' : fault ? 'bad' : status.degraded.length ? 'poor' : 'good';
  if (health.textContent !== told) health.textContent = told; // a status that is the same is not said again
  health.className = `health ${kind}`;
  if (!status) return;
  const { state, ageSeconds } = status.telemetry;
  const facts = {
    Policy: [status.policy, status.ranking],
    Model: modelWords(status.model),
    Mode: [status.mode],
    Queue: [status.queue ? 'on' : 'off'],
    Telemetry: [ageSeconds == null ? state : `${state}, ${age(ageSeconds)} old`],
    Version: [status.version],
  };
  const items = Object.entries(facts).map(([name, [value, title]]) =>
    el('div', { title }, el('dt', {}, name), el('dd', {}, value)),
  );
  fill(byId('facts'), ...items);
}

/** Which learned model there is, and why it does not rank where it does not. */
function modelWords({ mode, sha256, reason }) {
  if (!sha256) return ['none', reason ?? 'no learned model is loaded'];
  return [`${sha256.slice(0, 8)}, ${reason ? 'not ranking' : mode}`, reason ?? `loaded to ${mode}`];
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
      el('dd', { class: 'detail' }, booked),
    ),
    tile('In use', totals.load == null ? 'unknown' : `${Math.round(100 * totals.load)} %`, 'mean load of all GPUs'),
    tile('Free units', figure(totals.unitsFree), `of ${figure(totals.units)}`),
    tile('In fragments', figure(totals.fragments), `${percent(totals.fragments, totals.unitsFree)} of what is free`),
    tile('Waiting', figure(totals.pendingPods), `pods without a node; ${figure(totals.waitingPods)} rejected by Kerf, ${plural(totals.reservations, 'reservation')}`),
    tile('Unhealthy', figure(totals.unhealthy), `${plural(totals.nodes, 'node')}, ${figure(totals.gpuNodes)} with GPUs`, totals.unhealthy ? 'alarm' : ''),
  );
}

/** Reasons without the request that each repeats. */
const shortened = (why, request) => why.replaceAll(` x needs ${request}, `, ' × ');

function showWaiting({ total, more, items }) {
  const hidden = total - items.length;
  byId('waiting-count').textContent = total ? `${more ? 'at least ' : ''}${plural(total, 'pod')}` : '';
  if (!total) {
    fill(byId('waiting'), el('p', { class: 'hint' }, 'No pod that asks for GPUs is without a node.'));
    return;
  }
  const now = Date.now() / 1000;
  const rows = items.map((item) => [
    link('pod', item.pod),
    item.request || 'unclear',
    shortened(item.why, item.request) || (item.where === 'queue' ? 'not looked at yet' : 'the reason is no longer kept'),
    el('span', { class: 'whole' }, `${age(now - item.since)}${item.where === 'queue' ? ', at the gate' : ''}`),
  ]);
  fill(
    byId('waiting'),
    table('Pods without a node', ['Pod', 'Asks for', 'Why', 'Age'], rows),
    hidden > 0 && el('p', { class: 'hint' }, `and ${figure(hidden)} more`),
  );
}

function showDecisions(decisions) {
  if (!decisions.length) {
    fill(byId('decisions'), el('p', { class: 'hint' }, 'None yet. Decisions show up here as they are made.'));
    return;
  }
  const items = decisions.slice(0, SHOWN_DECISIONS).map((one) => {
    const gpus = one.gpus.length ? ` GPU ${one.gpus.join(', ')}` : '';
    const where = one.node ? ['→ ', link('node', one.node), gpus] : [shortened(one.why, one.request) || 'fits on no node'];
    return el(
      'li',
      { class: one.node ? 'placed' : 'rejected' },
      el('time', {}, clock(one.at)),
      el('span', { class: 'unseen' }, one.node ? 'placed' : 'rejected'),
      el('strong', {}, link('pod', one.pod)),
      el('span', { class: 'asked' }, `${one.request}, ${one.policy}`),
      el('span', { class: 'outcome' }, ...where),
    );
  });
  fill(byId('decisions'), el('ol', { class: 'feed scroll', tabindex: 0, 'aria-label': 'Decisions, newest first' }, items));
}
