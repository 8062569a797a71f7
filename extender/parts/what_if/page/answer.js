// The answer of POST /what-if in words.

import { ask, el, link, plural, table } from '../../dom.js';
import { roomFor, roomLink } from '../../room.js';

const MAX_NODES = 12;
const MAX_OBJECTS = 20;
const MAX_NAMES = 4;
const MAX_PENDING = 8;
const MAX_MOVABLE = 1000; // pods that POST /defrag takes
const NOTHING_PENDING = 'No GPU pods are pending or gated';

/** The answer to a question. Throws an Error with a sentence. */
export async function askWhatIf(question) {
  return ask('what-if', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(question) });
}

const share = (part) => `${(100 * part).toFixed(1)} %`;
const some = (names) => names.slice(0, MAX_NAMES).join(', ') + (names.length > MAX_NAMES ? ` and ${names.length - MAX_NAMES} more` : '');

/** The answer as elements; null for what does not apply. */
export function answerWords(told, question) {
  const pending = told.pods - told.placed;
  const nodes = [...told.nodes].sort((one, other) => other.pods.length - one.pods.length);
  const rows = nodes.slice(0, MAX_NODES).map((node) => [node.node.includes('+') ? node.node : link('node', node.node), node.pods.length, `${node.gpusUsed} of ${node.gpus}`]);
  return [
    el('p', { class: pending ? 'bad' : 'good' }, headline(told, question)),
    ...Object.entries(told.notChecked).map(([what, count]) => el('p', { class: 'hint' }, `not checked: ${what} (${plural(count, 'pod')})`)),
    told.missing && el('p', {}, `missing: ${told.missing.sentence}`),
    told.gained.length > 0 && el('p', {}, `only with the new nodes: ${some(told.gained)}`),
    ...told.objects.slice(0, MAX_OBJECTS).map(objectWords),
    told.objects.length > MAX_OBJECTS && el('p', { class: 'hint' }, `and ${told.objects.length - MAX_OBJECTS} more objects`),
    told.skipped.length > 0 && el('p', { class: 'hint' }, `left out, as they create no pods: ${some(told.skipped)}`),
    (question.pods || told.moved.length > 0) && (question.pods || question.manifest) && el('ul', { class: 'reasons' }, Object.entries(told.reasons).map(([reason, count]) => el('li', {}, `${count} × ${reason}`))),
    pendingWords(told, question),
    pending > 0 && !told.unreadable && roomButton(told, question),
    told.stranded != null && el('p', { class: 'hint' }, `stranded GPUs: ${share(told.strandedBefore)} now, ${share(told.stranded)} after`),
    rows.length > 0 && table('Nodes that would get pods', ['Node', 'Pods', 'GPUs, or time slices, in use after'], rows),
    nodes.length > MAX_NODES && el('p', { class: 'hint' }, `and ${nodes.length - MAX_NODES} more nodes`),
  ];
}

function headline(told, { drain = [], pods, manifest }) {
  const alone = !pods && !manifest;
  if (!told.pods) return alone && drain.length ? 'No pods would have to move' : NOTHING_PENDING;
  if (alone && drain.length) return `${told.placed} of ${plural(told.pods, 'pod')} would find another node`;
  const moved = told.moved.length ? `, ${told.moved.length} of them moved` : '';
  return `${told.placed} of ${plural(told.pods, alone ? 'pending pod' : 'pod')} would be placed${moved}`;
}

/** One object: nodes of its pods, and reasons of pending ones. */
function objectWords({ object, pods, placed, nodes, reasons, notes }) {
  const short = (key) => key.slice(key.indexOf('/') + 1);
  return el('section', { class: 'object', 'aria-label': object },
    el('h3', {}, object, el('span', { class: placed < pods ? 'bad' : 'good' }, ` ${placed} of ${plural(pods, 'pod')}`)),
    el('ul', { class: 'reasons' },
      nodes.slice(0, MAX_NODES).map((node) => el('li', {}, `${node.node}: ${some(node.pods.map(short))}`)),
      nodes.length > MAX_NODES && el('li', {}, `and ${nodes.length - MAX_NODES} more nodes`),
      Object.entries(reasons).map(([reason, count]) => el('li', { class: 'bad' }, `pending: ${count} × ${reason}`)),
    ),
    notes.map((note) => el('p', { class: 'hint' }, note)),
  );
}

/** The cluster's pods that stay pending, each with a link to the moves that would make room for it. */
function pendingWords({ unassigned, moved, noMoveHelps = [] }, { pods, manifest }) {
  if (pods || manifest || !unassigned.length) return null;
  const unmoved = new Set([...moved, ...noMoveHelps]);
  const shown = unassigned.slice(0, MAX_PENDING);
  return el('ul', { class: 'reasons', 'aria-label': 'Pods without a node' },
    shown.map(({ pod, reason }) => el('li', {}, link('pod', pod), ` ${reason}`, unmoved.has(pod) ? '' : roomLink(pod))),
    unassigned.length > shown.length && el('li', {}, `and ${unassigned.length - shown.length} more`),
  );
}

/** A button that plans moves by which these pods would fit in the current cluster. */
function roomButton(told, { pods, manifest, replicas = 1, drain = [], addNodes = [], findNodes }) {
  if (!(pods || manifest) || drain.length || addNodes.length || findNodes || told.pods > MAX_MOVABLE || told.noMoveHelps?.length) return null;
  const asked = manifest ? { manifest } : { pods: pods.flatMap((pod) => Array.from({ length: replicas }, (_, number) => numbered(pod, number))) };
  const shown = el('div', { class: 'room', role: 'status' });
  const button = el('button', { type: 'button', class: 'quiet', click: show }, 'Make room for all of them');
  async function show() {
    button.disabled = true;
    shown.replaceChildren(el('p', { class: 'hint' }, 'computing'));
    try {
      shown.replaceChildren(...(await roomFor(asked, 'Nothing is moved yet. To apply it: kerf defrag -f FILE --apply')).filter(Boolean));
    } catch (error) {
      shown.replaceChildren(el('p', { class: 'fault' }, error.message));
    }
    button.disabled = false;
  }
  return el('div', {}, button, shown);
}

const numbered = (pod, number) => ({ ...pod, metadata: { ...pod.metadata, name: `${pod.metadata.name}-${number}` } });
