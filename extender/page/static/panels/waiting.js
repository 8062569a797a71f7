// Pods that ask for GPUs and have no node, and why.

import { age, el, figure, fill, link, plural, shortened, table } from '../dom.js';
import { roomLink, work } from '../room.js';

export default {
  id: 'waiting',
  title: 'Pending pods',
  column: 'wide',
  build({ head, body, store }) {
    const count = el('span', { class: 'count' });
    head.append(count);
    const show = () =>
      store.sections.waiting && showWaiting(store.sections.waiting, store.sections, count, body);
    for (const change of ['waiting', 'missing', 'moves']) store.addEventListener(change, show);
    setInterval(show, 10_000); // ages
  },
};

function showWaiting({ total, more, items }, { missing, moves }, count, body) {
  const hidden = total - items.length;
  count.textContent = total ? `${more ? 'at least ' : ''}${plural(total, 'pod')}` : '';
  if (!total) {
    fill(body, el('p', { class: 'hint' }, 'No pending pods.'));
    return;
  }
  const now = Date.now() / 1000;
  const rows = items.map((item) => [
    link('pod', item.pod),
    item.request || 'unclear',
    shortened(item.why, item.request) || (item.where === 'queue' ? 'not evaluated yet' : 'reason no longer known'),
    el('span', { class: 'whole' }, `${age(now - item.since)}${item.where === 'queue' ? ', in the queue' : ''}`),
    roomLink(item.pod),
  ]);
  fill(
    body,
    missing?.sentence && el('p', { class: 'hint' }, missingWords(missing, now)),
    moves?.target && el('p', { class: 'hint' }, movesWords(moves)),
    table('Pending pods', ['Pod', 'Request', 'Reason', 'Age', 'Moves'], rows),
    hidden > 0 && el('p', { class: 'hint' }, `and ${figure(hidden)} more`),
  );
}

/** For whom room could be made by moving pods, and why that is not done. */
function movesWords({ target, moves, cost_gpu_s, why_not }) {
  const done = why_not ? `Not done by itself: ${why_not}.` : 'It is being done.';
  return `${target} would fit if ${plural(moves, 'pod')} moved, which loses ${work(cost_gpu_s)} of work. ${done}`;
}

/** Which new nodes would place the pods that wait. */
function missingWords({ sentence, pods, unplaced, at }, now) {
  const helped = pods - unplaced;
  const rest = unplaced ? ` ${plural(unplaced, 'pod')} would stay pending with any number of nodes.` : '';
  const whom = helped ? ` for ${plural(helped, 'pod')}` : '';
  return `Missing${whom}: ${sentence} (${age(now - at)} ago).${rest}`;
}
