// GPU-hours: over time, and by namespace since Kerf started counting.

import { age, el, figure, fill, percent, plural, stamp, table } from '../../dom.js';
import { showOverTime } from './over_time.js';

export default {
  id: 'usage',
  title: 'GPU-hours',
  column: 'narrow',
  build({ head, body, store }) {
    const count = el('span', { class: 'count' });
    head.append(count);
    const sums = el('div');
    const overTime = el('div', { class: 'usage-over-time' });
    body.append(sums, overTime);
    const show = () => showUsage(store.sections.usage, count, sums);
    store.addEventListener('usage', show);
    return showOverTime(overTime);
  },
};

function showUsage(told, count, body) {
  if (!told?.rows) {
    count.textContent = '';
    fill(body, el('p', { class: 'hint' }, 'Not counted here: another replica leads.'));
    return;
  }
  const { since, rows, more, totals, idle } = told;
  count.textContent = `since ${stamp(since)}`;
  const part = (name) => `${percent(totals[`${name}GpuHours`], totals.capacityGpuHours)}`;
  fill(
    body,
    el('p', { class: 'hint' }, `${part('booked')} booked, ${part('free')} free, ${part('stranded')} stranded, ${part('sick')} out of use.`),
    rows.length > 0 && table('GPU-hours by namespace', ['Namespace', 'Booked', 'Used', 'Idle'], rows.map(line)),
    more > 0 && el('p', { class: 'hint' }, `and ${plural(more, 'namespace')} more`),
    idle.pods > 0 &&
      el('p', { class: 'hint' }, `${plural(idle.pods, 'pod')} with ${plural(idle.gpus, 'GPU')} idle for ${age(idle.afterSeconds)} or more: kerf usage --idle`),
  );
}

function line(row) {
  const measured = row.measuredGpuHours > 0;
  return [row.namespace, figure(row.bookedGpuHours, 1), measured ? figure(row.usedGpuHours, 1) : '-', measured ? figure(row.idleGpuHours, 1) : '-'];
}
