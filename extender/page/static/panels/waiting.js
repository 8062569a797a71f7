// Pending GPU pods, and why they are pending.

import { age, ask, el, figure, fill, link, plural, table } from '../dom.js';
import { roomLink, work } from '../room.js';

const MOST = 100;
const ASK_EVERY_MS = 5000;

export default {
  id: 'waiting',
  title: 'Pending pods',
  column: 'wide',
  build({ head, body, store }) {
    const count = el('span', { class: 'count' });
    head.append(count);
    const told = new Map(); // answers of GET /pending, by pod
    const show = () =>
      store.sections.waiting && showWaiting(store.sections.waiting, told, store.sections, count, body);
    for (const change of ['waiting', 'missing', 'moves']) store.addEventListener(change, show);
    setInterval(show, 10_000); // ages
    const again = seldom(async () => {
      const { pods } = await ask(`pending?limit=${MOST}`);
      told.clear();
      for (const pod of pods) told.set(pod.pod, pod);
      show();
    });
    for (const change of ['waiting', 'nodes']) store.addEventListener(change, () => store.sections.waiting?.total && again());
  },
};

/** Run a function at most once in a while; if it fails, the next call runs it again. */
function seldom(work) {
  let planned = false;
  let last = -Infinity;
  return () => {
    if (planned || document.hidden) return;
    planned = true;
    setTimeout(() => {
      last = performance.now();
      work().catch(() => {}).finally(() => (planned = false));
    }, Math.max(last + ASK_EVERY_MS - performance.now(), 0));
  };
}

function showWaiting({ total, more, items }, told, { missing, moves }, count, body) {
  const hidden = total - items.length;
  count.textContent = total ? `${more ? 'at least ' : ''}${plural(total, 'pod')}` : '';
  if (!total) {
    fill(body, el('p', { class: 'hint' }, 'No pending pods.'));
    return;
  }
  const now = Date.now() / 1000;
  const rows = items.map((item) => [
    link('pod', item.pod),
    item.request || 'unreadable',
    reason(item, told.get(item.pod)),
    el('span', { class: 'whole' }, `${age(now - item.since)}${item.where === 'queue' ? ', in the queue' : ''}`),
    told.get(item.pod)?.movesHelp === false ? null : roomLink(item.pod),
  ]);
  fill(
    body,
    missing?.sentence && el('p', { class: 'hint' }, missingWords(missing, now)),
    moves?.target && el('p', { class: 'hint' }, movesWords(moves)),
    table('Pending pods', ['Pod', 'Request', 'Reason', 'Age', 'Moves'], rows),
    hidden > 0 && el('p', { class: 'hint' }, `and ${figure(hidden)} more`),
  );
}

/** Why a pod is pending, with its first remedy; until that is loaded, the reason in the event stream. */
function reason({ why, where }, told) {
  if (!told) return why || (where === 'queue' ? 'not evaluated yet' : 'reason no longer known');
  return el('div', {}, told.sentence, told.remedy && el('div', { class: 'hint' }, told.remedy.text));
}

/** The target for which moving pods would make room, and why they are not moved. */
function movesWords({ target, moves, cost_gpu_s, why_not }) {
  const done = why_not ? `Not done automatically: ${why_not}.` : 'The moves are in progress.';
  return `${target} would fit if ${plural(moves, 'pod')} moved, which loses ${work(cost_gpu_s)} of work. ${done}`;
}

/** New nodes on which pending pods would fit. */
function missingWords({ sentence, pods, unplaced, at }, now) {
  const helped = pods - unplaced;
  const rest = unplaced ? ` ${plural(unplaced, 'pod')} would stay pending with any number of nodes.` : '';
  const whom = helped ? ` for ${plural(helped, 'pod')}` : '';
  return `Missing${whom}: ${sentence} (${age(now - at)} ago).${rest}`;
}
