// Rows of the table of workloads: an owner or a namespace with its sums, or a pod.

import { panelAddress } from './address.js';
import { age, el, figure, link, memory, plural } from './dom.js';

const WAITING = ['placing', 'pending', 'gated'];

/** Whether a row's GPUs have been idle for long. */
const sleeps = (seconds, after) => after != null && seconds != null && seconds >= after;

/** A pod; `inner` if it is listed below its owner. */
export function podRow(pod, { idleAfterSeconds }, inner = false) {
  const below = [];
  if (pod.request) below.push(pod.request);
  if (inner && pod.node) below.push(el('span', {}, 'on ', link('node', pod.node)));
  if (!inner && !pod.owner.startsWith('Pod/')) below.push(ownerLink(pod.namespace, pod.owner));
  if (pod.gang) below.push(el('a', { href: panelAddress('workloads', { by: 'pod', gang: pod.gang }) }, `gang ${pod.gang}`));
  const name = pod.state === 'held' ? pod.pod : link('pod', pod.pod);
  return row(inner ? 'inner' : '', {
    Workload: el('div', {}, name, below.length > 0 && el('div', { class: 'below' }, joined(below))),
    State: el('span', { class: `state ${pod.state}` }, pod.state),
    ...(inner ? {} : { Node: where(pod) }),
    GPUs: gpus(pod),
    Load: percent(pod.load),
    Idle: idle(sleeps(pod.idleSeconds, idleAfterSeconds), pod.idleSeconds == null ? '-' : age(pod.idleSeconds)),
    Age: since(pod),
  });
}

/** An owner or a namespace; `toggle` is the button that lists its pods, if there is one. */
export function groupRow(group, { by, idleAfterSeconds }, toggle) {
  const name = by === 'owner'
    ? el('div', { class: 'owned' }, toggle, el('div', {}, ownerLink(group.namespace, group.owner), el('div', { class: 'below' }, namespaceLink(group.namespace))))
    : namespaceLink(group.namespace);
  const long = sleeps(group.idleSeconds, idleAfterSeconds);
  const hours = group.idleSeconds == null ? '-' : age(group.idleSeconds);
  const asked = group.gpusAsked ? `${group.gpusBooked ? ' + ' : ''}${figure(group.gpusAsked)} requested` : '';
  return row('group', {
    Workload: name,
    State: states(group),
    GPUs: `${group.gpusBooked || !asked ? figure(group.gpusBooked) : ''}${asked}`,
    Load: percent(group.load),
    Idle: idle(long, long ? `${plural(group.idleGpus, 'GPU')}, ${hours}` : hours),
    Age: since(group),
  });
}

/** The row below an owner's listed pods, if there are more. */
export const moreRow = (group, hidden, columns) =>
  el('tr', { class: 'inner' }, el('td', { colspan: columns }, el('a', { href: panelAddress('workloads', ofOwner(group)) }, `and ${plural(hidden, 'more pod')}`)));

/** The address of one owner's pods. */
export const ofOwner = ({ namespace, owner }) => ({ by: 'pod', namespace, owner });

export const ownerLink = (namespace, owner) =>
  el('a', { href: panelAddress('workloads', ofOwner({ namespace, owner })), 'aria-label': `Pods of ${owner} in ${namespace}` }, owner);

const namespaceLink = (namespace) => el('a', { href: panelAddress('workloads', { by: 'owner', namespace }) }, namespace);

const joined = (elements) => elements.flatMap((one, index) => (index ? [', ', one] : [one]));

/** Cells by their columns, the first of them the row's heading; narrow windows show a row as a card. */
function row(kind, cells) {
  const [[, name], ...rest] = Object.entries(cells);
  const others = rest.map(([heading, cell]) => el('td', { 'data-heading': heading, class: typeof cell === 'string' ? 'whole' : null }, cell));
  return el('tr', { class: kind || null }, el('th', { scope: 'row' }, name), others);
}

/** "3 running, 1 pending" */
function states({ states: told }) {
  const parts = Object.entries(told).filter(([, count]) => count);
  return joined(parts.map(([name, count]) => el('span', { class: WAITING.includes(name) ? `state ${name}` : null }, `${figure(count)} ${name}`)));
}

const where = ({ node, model }) => (node ? el('div', {}, link('node', node), model && el('div', { class: 'below' }, model)) : '-');

function gpus({ gpus: count, memoryMiB, indices }) {
  if (count == null) return '-';
  const share = count % 1 && memoryMiB ? `, ${memory(memoryMiB)}` : '';
  return el('span', { title: indices.length ? `GPU ${indices.join(', ')}` : null }, `${figure(count, 3)}${share}`);
}

const percent = (load) => (load == null ? '-' : `${Math.round(100 * load)} %`);

const idle = (long, text) => (long ? el('strong', { class: 'poor' }, text) : text);

const since = ({ since: at }) => (at == null ? '-' : age(Date.now() / 1000 - at));
