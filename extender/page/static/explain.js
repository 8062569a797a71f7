// Why a pod is on its node, or pending; and which pods hold a node's GPUs.

import { age, ask, clock, el, figure, link, memory, plural, table } from './dom.js';
import { details, remedies, scores } from './sentences.js';
import { ownerLink } from './workload_rows.js';

const MAX_CANDIDATES = 100;
const MAX_NAMES = 4;
const MAX_FEATURES = 12;

/** The explanation of a pod, `namespace/name`, as elements. */
export async function explainPod(key) {
  const [namespace, name] = key.split('/');
  const told = await ask(`explain/pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`);
  if (told.workload) return running(told);
  if (told.policy == null) return [el('p', { class: 'verdict' }, el('strong', { class: 'bad' }, 'pending')), el('p', { class: 'sentence' }, told.sentence), remedies(told)];
  const placed = told.verdict === 'placed';
  const fitting = told.nodes.filter((node) => node.reason === 'FITS').length;
  return [
    el(
      'p',
      { class: 'verdict' },
      el('strong', { class: placed ? 'good' : 'bad' }, placed ? 'placed' : 'pending'),
      placed && [' on ', link('node', told.node), told.gpus.length ? `, GPU ${told.gpus.join(', ')}` : ''],
    ),
    el('p', { class: 'sentence' }, told.sentence),
    remedies(told),
    told.ahead > 0 && el('p', {}, `${plural(told.ahead, 'pod')} in Kerf's queue before it, by priority, then age`),
    el('p', { class: 'hint' }, `requests ${told.request}; policy ${told.policy}; decided ${clock(Date.parse(told.decidedAt) / 1000)}; ${nowWords(told)}`),
    told.crosses && el('p', {}, `its GPUs are on more than one ${told.crosses === 'numa' ? 'NUMA node' : 'link group'}`),
    told.interference && el('p', {}, sharingWords(told.interference)),
    details('Details', [
      told.queue && el('p', {}, `it waits in Kerf's queue: ${told.queue}`),
      told.lacks && el('p', {}, `nearest: ${told.lacks}`),
      !told.offered && !told.queue && el('p', {}, 'kube-scheduler has not asked Kerf about this pod recently: its own plugins rule out every node, or the pod is gated. Evaluated on all nodes now:'),
      !placed && suggestions(told),
      told.ranking && ranking(told.ranking),
      scores(told),
      reasons(told, fitting),
      candidates(told),
    ]),
  ];
}

/** A pod that holds GPUs, without a recorded decision. */
function running({ node, gpus, sentence, workload }) {
  const { state, model, load, since, namespace, owner } = workload;
  const has = [`${figure(workload.gpus, 3)} × ${model ?? 'GPU of unknown model'}`];
  if (load != null) has.push(`load ${Math.round(100 * load)} %`);
  if (since != null) has.push(`${age(Date.now() / 1000 - since)} old`);
  return [
    el('p', { class: 'verdict' }, el('strong', { class: 'good' }, state), ' on ', link('node', node), gpus.length > 0 && `, GPU ${gpus.join(', ')}`),
    el('p', {}, `${has.join(', ')}, of `, ownerLink(namespace, owner)),
    el('p', { class: 'hint' }, sentence),
  ];
}

/** What the learned rank's value of the chosen node consists of, or why best fit ranked instead. */
function ranking({ served, reason, gainGPUs, headroom, features }) {
  if (served !== 'model') return el('p', {}, `ranked by ${served}: ${reason}`);
  const short = (value) => +value.toFixed(2) || 0;
  const rows = features.slice(0, MAX_FEATURES).map((one) => [`${one.feature}: ${one.meaning}`, short(one.before), short(one.after), short(one.movedGPUs)]);
  return el(
    'section',
    {},
    el('h3', {}, 'How the learned rank scores it'),
    el('p', {}, `learned score of the node with the pod, minus that without it: ${short(gainGPUs)} (no unit: it only ranks nodes)${headroom == null ? '' : `; headroom ${Math.round(100 * headroom)} %`}`),
    table('Features of the node, and what each adds', ['Feature', 'Before', 'After', 'Adds'], rows),
  );
}

/** A node's GPUs and holders, as elements. */
export async function explainNode(name) {
  const told = await ask(`nodes/${encodeURIComponent(name)}`);
  const heldBy = (index) => told.holders.filter((holder) => holder.gpus.includes(index));
  const claimed = told.gpuDetails.some((gpu) => gpu.uses);
  const rows = told.gpuDetails.map((gpu) => [
    String(gpu.index),
    `${gpu.model || 'unknown'}${gpu.memoryMiB ? `, ${memory(gpu.memoryMiB)}` : ''}`,
    gpu.healthy ? bookedWords(gpu) : 'unhealthy',
    usedWords(gpu),
    pods(heldBy(gpu.index)),
    ...(claimed ? [el('div', {}, wordsOfDevices(gpu).map((line) => el('div', {}, line)))] : []),
  ]);
  const elsewhere = told.holders.filter((holder) => !holder.gpus.length && !holder.claim);
  return [
    el('p', {}, `${told.models.join(', ') || 'no GPUs'}; ${told.gpusBooked} of ${plural(told.gpus, 'GPU')} booked, ${told.gpusReserved ? `${told.gpusReserved} reserved, ` : ''}${plural(told.unitsFree, told.units === told.gpus ? 'GPU' : 'time slice')} free`),
    told.gpusStranded > 0 && el('p', {}, `${figure(told.gpusStranded, 1)} of them stranded: expected pods can't use them`),
    told.devices?.owned > 0 && el('p', {}, `devices that Kerf can allocate to ResourceClaims: ${told.devices.free}`),
    ...(told.devices?.pools ?? []).filter((pool) => pool.fault).map((pool) => el('p', { class: 'fault' }, `pool ${pool.pool} of ${pool.driver}: ${pool.fault}`)),
    rows.length > 0 && table(`GPUs of ${name}`, ['GPU', 'Model', 'Booked', 'Used', 'Held by', ...(claimed ? ['Devices'] : [])], rows),
    others(told.deviceUses),
    elsewhere.length > 0 && el('p', {}, 'On GPUs whose index is unknown: ', pods(elsewhere)),
  ];
}

/** Devices that belong to no GPU. */
function others(uses) {
  const found = uses.filter((use) => use.gpu == null);
  return found.length > 0 && el('ul', {}, found.map((use) => el('li', {}, wordsOfUse(use))));
}

/** Allocated and free devices of a GPU, one line each. */
export function wordsOfDevices({ uses = [], freeDevices }) {
  return [...uses.map(wordsOfUse), ...(freeDevices ? [`free: ${freeDevices}`] : [])];
}

function wordsOfUse({ device, kind, claim, pods: users, state, admin }) {
  const what = kind && kind !== 'GPU' ? `${device} (${kind})` : device;
  const of = users.length ? ` of ${users.join(', ')}` : '';
  return `${what}: ${admin ? 'admin access by ' : ''}claim ${claim}${of}${state === 'allocated' ? '' : `, ${state}`}`;
}

function pods(holders) {
  if (!holders.length) return el('span', {}, '-');
  const names = holders.map((holder) => {
    const state = holder.state === 'BOUND' ? '' : ` (${holder.state.toLowerCase()})`;
    return el('div', {}, holder.pod ? link('pod', holder.pod) : 'a pod', state);
  });
  return el('div', {}, names);
}

const bookedWords = (gpu) =>
  gpu.free ? 'free' : gpu.freeMilli > 0 ? `${1000 - gpu.freeMilli} of 1000 milli, ${memory(gpu.memoryMiB - gpu.freeMemoryMiB)}` : 'all';

function usedWords({ observed = {}, unmanagedMiB, faulty }) {
  const parts = [];
  if (observed.load != null) parts.push(`${Math.round(100 * observed.load)} %`);
  if (observed.memory_used != null) parts.push(memory(Math.round(observed.memory_used)));
  if (observed.temperature != null) parts.push(`${Math.round(observed.temperature)} °C`);
  if (unmanagedMiB) parts.push(`${memory(unmanagedMiB)} of it without a booking`);
  if (faulty) parts.push('faulty');
  return parts.join(', ') || 'unknown';
}

function nowWords({ now, verdict }) {
  const parts = [];
  if (now.held) parts.push(`now ${now.held.state.toLowerCase()} on ${now.held.node}`);
  else if (verdict === 'placed') parts.push('it holds nothing now: its reservation has expired, or the pod is gone');
  else if (now.nodesThatFit) parts.push(`it fits now, on ${now.bestNode}`);
  if (now.numChanged) parts.push(`${plural(now.numChanged, 'candidate')} changed since`);
  if (now.gone.length) parts.push(`${now.gone.length} gone`);
  return parts.join('; ') || 'nothing has changed since';
}

const sharingWords = ({ slowdown, saving }) =>
  `sharing its GPU is expected to slow it down by a factor of ${slowdown.toFixed(2)}, and to save ${saving.toFixed(2)} GPUs`;

function suggestions(told) {
  const found = told.wouldFit ?? [];
  if (!found.length) {
    const why = told.now.nodesThatFit ? told.offered ? 'Waiting for kube-scheduler to retry it.' : 'Waiting for kube-scheduler to ask Kerf about it.' : 'No smaller request would fit on any of its candidates.';
    return el('p', {}, why);
  }
  const items = found.map((one) => {
    const more = one.numNodes > MAX_NAMES ? ` and ${plural(one.numNodes - MAX_NAMES, 'more node')}` : '';
    const rest = one.change === 'room' ? one.who : `${one.nodes.slice(0, MAX_NAMES).join(', ')}${more}`;
    return el('li', {}, el('strong', {}, one.text), rest && `: ${rest}`);
  });
  return el('section', {}, el('h3', {}, 'It would fit with'), el('ul', { class: 'fits' }, items));
}

function reasons(told, fitting) {
  const total = told.nodes.length || 1;
  const rows = Object.entries(told.reasons).map(([reason, count]) =>
    el('li', {}, el('meter', { min: 0, max: total, value: count, 'aria-hidden': 'true' }), `${count} × ${reason}`),
  );
  return el(
    'section',
    {},
    el('h3', {}, `${fitting} of ${plural(told.nodes.length, 'candidate')} had room`),
    rows.length > 0 && el('ul', { class: 'reasons' }, rows),
  );
}

function candidates(told) {
  if (!told.nodes.length) return null;
  const rank = (node) => node.rank ?? told.nodes.length + (node.busy ? 1 : 2);
  const order = [...told.nodes].sort((one, other) => rank(one) - rank(other) || other.available - one.available);
  const rows = order.slice(0, MAX_CANDIDATES).map((node) => [
    link('node', node.node),
    node.rank ?? '-',
    node.score == null ? '-' : +node.score.toFixed(2) || 0,
    node.terms ? `${node.terms.freeUnits} free, takes ${node.terms.takenUnits}, leaves ${node.terms.leftUnits}` : node.lacks || node.text,
    obstacleWords(node.gpus ?? []),
  ]);
  const hidden = order.length - rows.length;
  return el(
    'section',
    {},
    el('h3', {}, 'Candidates'),
    table('Candidates, best first', ['Node', 'Rank', 'Score', 'Free, or reason', 'GPUs'], rows),
    hidden > 0 && el('p', { class: 'hint' }, `and ${hidden} more: kerf explain ${told.pod} -o json lists all`),
  );
}

/** Equal GPUs grouped: "3 × in use, 5 × ok". */
function obstacleWords(gpus) {
  const alike = new Map();
  for (const gpu of gpus) alike.set(gpu.obstacle ?? 'ok', (alike.get(gpu.obstacle ?? 'ok') ?? 0) + 1);
  return [...alike].map(([words, count]) => `${count} × ${words}`).join(', ');
}
