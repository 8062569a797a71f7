// The what-if form: the question that POST /what-if takes, and its answer in words.

import { ask, byId, el, plural, table } from './dom.js';

const MAX_NODES = 12;

/** Make the form work. */
export function showTrial() {
  const form = byId('trial');
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const button = form.querySelector('button');
    button.disabled = true;
    try {
      const body = JSON.stringify(question(new FormData(form)));
      const told = await ask('what-if', { method: 'POST', headers: { 'content-type': 'application/json' }, body });
      byId('trial-told').replaceChildren(...answer(told));
    } catch (error) {
      byId('trial-told').replaceChildren(el('p', { class: 'fault' }, error.message));
    }
    button.disabled = false;
  });
}

function question(given) {
  const text = (name) => given.get(name).trim();
  const annotations = {};
  if (text('memory')) annotations['kerf.dev/gpu-memory-each'] = text('memory');
  if (text('model')) annotations['kerf.dev/gpu-model'] = text('model');
  const gpus = Number(text('gpus'));
  const resources = gpus ? { limits: { 'nvidia.com/gpu': String(gpus) } } : {};
  const pod = { metadata: { name: 'what-if', namespace: 'default', annotations }, spec: { containers: [{ name: 'main', resources }] } };
  const listed = (name) => text(name).split(/[\s,]+/).filter(Boolean);
  const addNodes = listed('add').map((entry) => {
    const [template, count] = entry.split('=');
    return { template, count: Number(count ?? 1) };
  });
  return { pods: [pod], replicas: Number(text('replicas')), drain: listed('drain'), addNodes };
}

const share = (part) => `${(100 * part).toFixed(1)} %`;

function answer(told) {
  const pending = told.pods - told.placed;
  const moved = told.moved.length ? `, ${told.moved.length} of them moved` : '';
  const nodes = [...told.nodes].sort((one, other) => other.pods.length - one.pods.length);
  const rows = nodes.slice(0, MAX_NODES).map((node) => [node.node, node.pods.length, `${node.gpusUsed} of ${node.gpus}`]);
  return [
    el('p', { class: pending ? 'bad' : 'good' }, `${told.placed} of ${plural(told.pods, 'pod')} would be placed${moved}`),
    el('ul', { class: 'reasons' }, Object.entries(told.reasons).map(([reason, count]) => el('li', {}, `${count} × ${reason}`))),
    el('p', {}, `in fragments: ${share(told.fragmentsBefore)} of all GPU units now, ${share(told.fragments)} then`),
    rows.length ? table('Nodes that would get pods', ['Node', 'Pods', 'GPU units in use then'], rows) : '',
    nodes.length > MAX_NODES ? el('p', { class: 'hint' }, `and ${nodes.length - MAX_NODES} more nodes`) : '',
  ];
}
