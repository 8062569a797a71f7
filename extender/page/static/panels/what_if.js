// The what-if form: the question that POST /what-if takes, and its answer in words.

import { ask, el, plural, table } from '../dom.js';

const MAX_NODES = 12;
const FIELDS = {
  replicas: ['Pods', { type: 'number', min: 1, max: 10000, value: 8, required: true }],
  gpus: ['GPUs each', { type: 'number', min: 0, max: 64, value: 1, required: true }],
  memory: ['Memory per GPU', { placeholder: 'any, or 40Gi' }],
  model: ['Model', { placeholder: 'any, or a100|h100' }],
  drain: ['Drain nodes', { placeholder: 'none, or a, b' }],
  add: ['Add nodes', { placeholder: 'none, h100-0=2, or auto' }],
};

export default {
  id: 'what-if',
  title: 'What if',
  column: 'narrow',
  build({ body }) {
    const fields = Object.entries(FIELDS).map(([name, [title, attributes]]) =>
      el('label', {}, title, el('input', { name, autocomplete: 'off', spellcheck: 'false', ...attributes })),
    );
    const button = el('button', {}, 'Run');
    const result = el('div', { id: 'what-if-result', role: 'status' });
    const submit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        const content = JSON.stringify(question(new FormData(event.target)));
        const told = await ask('what-if', { method: 'POST', headers: { 'content-type': 'application/json' }, body: content });
        result.replaceChildren(...answer(told));
      } catch (error) {
        result.replaceChildren(el('p', { class: 'fault' }, error.message));
      }
      button.disabled = false;
    };
    const hint = el('p', { class: 'hint' }, 'Where a batch of pods would be placed now. Nothing is reserved or changed.');
    body.append(hint, el('form', { class: 'trial', submit }, fields, button), result);
  },
};

function question(given) {
  const text = (name) => given.get(name).trim();
  const annotations = {};
  if (text('memory')) annotations['kerf.dev/gpu-memory-each'] = text('memory');
  if (text('model')) annotations['kerf.dev/gpu-model'] = text('model');
  const gpus = Number(text('gpus'));
  const resources = gpus ? { limits: { 'nvidia.com/gpu': String(gpus) } } : {};
  const pod = { metadata: { name: 'what-if', namespace: 'default', annotations }, spec: { containers: [{ name: 'main', resources }] } };
  const listed = (name) => text(name).split(/[\s,]+/).filter(Boolean);
  const added = listed('add');
  const addNodes = added.filter((entry) => entry !== 'auto').map((entry) => {
    const [template, count] = entry.split('=');
    return { template, count: Number(count ?? 1) };
  });
  return { pods: [pod], replicas: Number(text('replicas')), drain: listed('drain'), addNodes, findNodes: added.includes('auto') };
}

const share = (part) => `${(100 * part).toFixed(1)} %`;

function answer(told) {
  const pending = told.pods - told.placed;
  const moved = told.moved.length ? `, ${told.moved.length} of them moved` : '';
  const nodes = [...told.nodes].sort((one, other) => other.pods.length - one.pods.length);
  const rows = nodes.slice(0, MAX_NODES).map((node) => [node.node, node.pods.length, `${node.gpusUsed} of ${node.gpus}`]);
  return [
    el('p', { class: pending ? 'bad' : 'good' }, `${told.placed} of ${plural(told.pods, 'pod')} would be placed${moved}`),
    told.missing ? el('p', {}, `missing: ${told.missing.sentence}`) : '',
    el('ul', { class: 'reasons' }, Object.entries(told.reasons).map(([reason, count]) => el('li', {}, `${count} × ${reason}`))),
    el('p', {}, `fragmented GPU units: ${share(told.fragmentsBefore)} now, ${share(told.fragments)} after`),
    rows.length ? table('Nodes that would get pods', ['Node', 'Pods', 'GPU units in use after'], rows) : '',
    nodes.length > MAX_NODES ? el('p', { class: 'hint' }, `and ${nodes.length - MAX_NODES} more nodes`) : '',
  ];
}
