// Moves that would make room for a pending pod: the answer of POST /defrag in words.

import { ask, el, link, plural, table } from './dom.js';

const MAX_MOVES = 50;
const MAX_NAMES = 4;
const MAX_REASONS = 12;

/** The moves by which a pending pod, `namespace/name`, or its gang would fit, as elements. */
export const makeRoom = (key) => roomFor({ for: key }, `Nothing is moved yet. To apply it: kerf defrag --for ${key} --apply`);

/** The answer of POST /defrag as elements, followed by `hint`. */
export async function roomFor(question, hint) {
  const headers = { 'content-type': 'application/json' };
  const told = await ask('defrag', { method: 'POST', headers, body: JSON.stringify(question) });
  if (!told.fits) {
    const shown = told.impossible.slice(0, MAX_REASONS);
    const hidden = told.impossible.length - shown.length;
    return [
      el('p', { class: 'verdict' }, el('strong', { class: 'bad' }, 'no room can be made by moving pods')),
      el('ul', { class: 'reasons' }, shown.map((why) => el('li', {}, why))),
      hidden > 0 && el('p', { class: 'hint' }, `and ${hidden} more`),
    ];
  }
  if (!told.moves.length) return [el('p', { class: 'verdict' }, el('strong', { class: 'good' }, 'there is room already')), target(told)];
  const { before, after } = told;
  const rows = told.moves.slice(0, MAX_MOVES).map((move) => [
    link('pod', move.pod),
    link('node', move.from),
    link('node', move.to),
    move.gpus.join(', ') || '-',
    work(move.cost_gpu_s),
  ]);
  const hidden = told.moves.length - rows.length;
  return [
    el('p', { class: 'verdict' }, el('strong', { class: 'good' }, `${plural(told.moves.length, 'pod')} would have to move`), `, which loses ${work(told.cost_gpu_s)} of work`),
    table('Moves, in order', ['Pod', 'From', 'To', 'GPUs there', 'Loses'], rows),
    hidden > 0 && el('p', { class: 'hint' }, `and ${plural(hidden, 'more move')}`),
    target(told),
    el('p', {}, `whole nodes free: ${before.freeNodes} now, ${after.freeNodes} after`),
    before.usableGpus != null && el('p', {}, `free GPUs on nodes where ${told.target.length > 1 ? 'the first of them' : 'it'} fits: ${before.usableGpus} now, ${after.usableGpus} after`),
    el('p', { class: 'hint' }, hint),
  ];
}

/** Nodes of the pods for which room is made. */
function target(told) {
  const shown = told.target.slice(0, MAX_NAMES).map((pod) => el('li', {}, `${pod.pod} then goes to `, link('node', pod.node)));
  const hidden = told.target.length - shown.length;
  return el('ul', { class: 'reasons' }, shown, hidden > 0 && el('li', {}, `and ${plural(hidden, 'more pod')}`));
}

/** "1.5 GPU hours", "12 GPU minutes" */
export const work = (gpuSeconds) => (gpuSeconds >= 3600 ? `${(gpuSeconds / 3600).toFixed(1)} GPU hours` : `${(gpuSeconds / 60).toFixed(0)} GPU minutes`);

/** A link to the moves that would make room for a pod. */
export const roomLink = (key) => el('a', { href: `#room/${encodeURI(key)}`, class: 'whole', 'aria-label': `Make room for ${key}` }, 'Make room');
