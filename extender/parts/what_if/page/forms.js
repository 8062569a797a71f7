// The forms of the what-if panel: their fields, and the question that each asks.
//   key         prefix of errors about the field
//   takesRest   whether errors that name no field are shown beside it
//   point       called with an error, to select its place

import { el } from '../../dom.js';

const MAX_CHARS = 2 ** 20;

export const FORMS = [
  {
    name: 'pods',
    title: 'Pods',
    hint: 'Where a batch of pods would be placed now.',
    fields: (store) => [
      field('replicas', 'Number of pods', { type: 'number', min: 1, max: 10000, value: 8 }, 'invalid request: Expected `int`'),
      field('gpus', 'GPUs each', { type: 'number', min: 0, max: 64, value: 1 }),
      whose(store),
      field('memory', 'Memory per GPU', { placeholder: 'any, or 40Gi' }),
      field('model', 'Model', { placeholder: 'any, or a100|h100' }),
      ...others(),
    ],
    question: (given) => ({ pods: [pod(given)], replicas: Number(text(given, 'replicas')), ...changes(given) }),
  },
  {
    name: 'yaml',
    title: 'YAML',
    hint: 'Where the pods of a Job, Deployment, JobSet, PodGroup and the like would be placed now: paste it, or drop a file.',
    fields: () => [manifest(), ...others()],
    question: (given) => {
      if (!text(given, 'manifest')) throw new Error('paste a manifest first');
      return { manifest: given.get('manifest'), ...changes(given) };
    },
  },
  {
    name: 'drain',
    title: 'Drain',
    hint: 'Where the pods of these nodes would go, and which would find no other node.',
    fields: (store) => [field('drain', 'Nodes to drain', { placeholder: 'a, b', ...named(store) }, 'drain:', { all: true, takesRest: true })],
    question: (given) => {
      if (!listed(given, 'drain').length) throw new Error('drain: name a node');
      return { drain: listed(given, 'drain') };
    },
  },
  {
    name: 'add',
    title: 'Add nodes',
    hint: 'Which pods that are pending now would find a node.',
    fields: (store) => [
      field('like', 'Like node', { placeholder: 'any: find the fewest', ...named(store) }, 'addNodes:', { takesRest: true }),
      field('count', 'How many', { type: 'number', min: 1, max: 1000, value: 1 }, 'invalid request'),
    ],
    question: (given) => {
      const template = text(given, 'like');
      return template ? { addNodes: [{ template, count: Number(text(given, 'count')) }] } : { findNodes: true, waiting: true };
    },
  },
];

const text = (given, name) => given.get(name).trim();
const listed = (given, name) => text(given, name).split(/[\s,]+/).filter(Boolean);

/** A field with its label. */
function field(name, title, attributes, key = '', { all = false, takesRest = false } = {}) {
  const input = el('input', { name, autocomplete: 'off', spellcheck: 'false', ...attributes });
  return { key, takesRest, input, label: el('label', all ? { class: 'all' } : {}, title, input) };
}

/** Fields for nodes that are drained or added in addition. */
const others = () => [
  field('drain', 'With nodes drained', { placeholder: 'none, or a, b' }, 'drain:'),
  field('add', 'With nodes added', { placeholder: 'none, h100-0=2, or auto' }, 'addNodes:'),
];

function changes(given) {
  const added = listed(given, 'add');
  const addNodes = added.filter((entry) => entry !== 'auto').map((entry) => {
    const [template, count] = entry.split('=');
    return { template, count: Number(count ?? 1) };
  });
  return { drain: listed(given, 'drain'), addNodes, findNodes: added.includes('auto') };
}

/** A choice of GPU vendor, shown if there are several. */
function whose(store) {
  const input = el('select', { name: 'resource' });
  const label = el('label', {}, 'Vendor', input);
  const fill = () => {
    const vendors = store.sections.vendors ?? [];
    input.replaceChildren(...vendors.map(({ title, resource }) => el('option', { value: resource }, title)));
    label.hidden = vendors.length < 2;
  };
  store.addEventListener('vendors', fill);
  fill();
  return { key: '', takesRest: false, input, label };
}

/** The pod that the form describes. */
function pod(given) {
  const annotations = {};
  if (text(given, 'memory')) annotations['kerf.dev/gpu-memory-each'] = text(given, 'memory');
  if (text(given, 'model')) annotations['kerf.dev/gpu-model'] = text(given, 'model');
  const gpus = Number(text(given, 'gpus'));
  const resources = gpus ? { limits: { [text(given, 'resource')]: String(gpus) } } : {};
  return { metadata: { name: 'what-if', namespace: 'default', annotations }, spec: { containers: [{ name: 'main', resources }] } };
}

/** GPU node names to choose from, updated when the field gets focus. */
function named(store) {
  const id = `names-${Math.random().toString(36).slice(2)}`;
  const fill = ({ target }) => {
    if (target.nextSibling?.id !== id) target.after(el('datalist', { id }));
    const names = [...store.nodes.values()].filter((node) => node.gpus.length).map((node) => node.node);
    target.nextSibling.replaceChildren(...names.slice(0, 200).map((name) => el('option', { value: name })));
  };
  return { list: id, focus: fill };
}

/** A field for manifests, which accepts dropped files. */
function manifest() {
  const input = el('textarea', {
    name: 'manifest', rows: 8, spellcheck: 'false', autocomplete: 'off', wrap: 'off',
    placeholder: 'apiVersion: batch/v1\nkind: Job\n...',
    dragover: (event) => event.preventDefault(),
    drop: (event) => {
      const [file] = event.dataTransfer.files;
      if (!file) return;
      event.preventDefault();
      take(file);
    },
  });
  const open = el('input', { type: 'file', accept: '.yaml,.yml,.json', 'aria-label': 'Open a file', change: () => open.files[0] && take(open.files[0]) });
  const refusal = el('p', { class: 'fault', role: 'alert' });
  async function take(file) {
    const tooLarge = file.size > MAX_CHARS;
    refusal.textContent = tooLarge ? `${file.name} is larger than 1 MiB` : '';
    if (!tooLarge) input.value = await file.text();
  }
  /** Select the line that an error names. */
  function point(fault) {
    const line = Number(/\bline (\d+)/.exec(fault)?.[1] ?? 0);
    if (!line) return;
    const lines = input.value.split('\n');
    const from = lines.slice(0, line - 1).join('\n').length + (line > 1 ? 1 : 0);
    input.setSelectionRange(from, from + (lines[line - 1]?.length ?? 0));
    input.scrollTop = ((line - 2) / lines.length) * input.scrollHeight;
  }
  return { key: 'document', takesRest: true, input, point, label: el('div', { class: 'all' }, el('label', {}, 'Manifests', input), open, refusal) };
}
