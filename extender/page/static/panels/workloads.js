// All pods that have or request GPUs, by owner, by namespace or one by one. Loaded while visible.

import { panelAddress, say } from '../address.js';
import { age, ask, el, figure, fill, plural } from '../dom.js';
import { groupRow, moreRow, ofOwner, podRow } from '../workload_rows.js';

const PER_PAGE = 50;
const EVERY_MS = 5000;
const NAMESPACES_EVERY_MS = 60_000;
const MAX_NAMESPACES = 1000;
const MAX_INNER = 20;
const MAX_OPEN = 8;
const VIEWS = { owner: 'Owners', pod: 'Pods', namespace: 'Namespaces' };
const STATES = ['running', 'starting', 'ending', 'held', 'placing', 'pending', 'gated'];
const CHOICES = {
  by: Object.keys(VIEWS),
  state: STATES,
  idle: ['true'],
  sort: ['idle', 'gpus', 'load', 'age', 'name', 'priority', 'pods'],
  reverse: ['true'],
};
const TEXTS = ['namespace', 'owner', 'gang', 'node', 'q'];
const COLUMNS = [
  { name: 'Workload', sort: 'name', rises: true },
  { name: 'State' },
  { name: 'Node' },
  { name: 'GPUs', sort: 'gpus' },
  { name: 'Load', sort: 'load', rises: true },
  { name: 'Idle', sort: 'idle' },
  { name: 'Age', sort: 'age' },
];

export default {
  id: 'workloads',
  title: 'Workloads',
  column: 'wide',
  build({ head, body }) {
    const table = new Workloads(head, body);
    return (query) => table.show(query);
  },
};

class Workloads {
  #asked = wanted(new URLSearchParams());
  #page = 0;
  #number = 0;
  #seen = false;
  #told = null;
  #fault = '';
  #unknown = '';
  #open = new Map(); // by namespace and owner: its pods, null until loaded
  #namespacesAt = -Infinity;

  constructor(head, body) {
    this.count = el('span', { class: 'count' });
    this.views = el('div', { class: 'tabs', role: 'group', 'aria-label': 'Rows of workloads' });
    this.states = el('div', { class: 'chips', role: 'group', 'aria-label': 'State of workloads' });
    this.namespaces = el('select', { 'aria-label': 'Namespace of workloads', change: () => this.#ask({ namespace: this.namespaces.value }) });
    this.find = el('input', { type: 'search', 'aria-label': 'Filter workloads', placeholder: 'Filter: pod, owner, node, model', autocomplete: 'off', spellcheck: 'false' });
    this.chosen = el('div', { class: 'chips' });
    this.root = el('div');
    let typed;
    this.find.addEventListener('input', () => {
      clearTimeout(typed);
      typed = setTimeout(() => this.#ask({ q: this.find.value.trim() }), 250);
    });
    head.append(this.count, this.views);
    body.append(el('div', { class: 'filters' }, this.states, this.namespaces, this.find), this.chosen, this.root);
    this.#controls();
    fill(this.root, el('p', { class: 'hint' }, 'loading'));
    const sight = new IntersectionObserver((entries) => {
      const before = this.#seen;
      this.#seen = entries.at(-1).isIntersecting;
      if (this.#seen && !before) this.#load();
    }, { rootMargin: '200px' });
    sight.observe(body);
    setInterval(() => this.#seen && !document.hidden && this.#load(), EVERY_MS);
  }

  /** Show an address's query. */
  show(query) {
    this.#asked = wanted(query);
    this.#unknown = unknown(query);
    this.#begin();
  }

  /** Change the query, and the address with it. */
  #ask(change) {
    Object.assign(this.#asked, change);
    this.#unknown = '';
    const { by, sort, ...rest } = this.#asked;
    say(panelAddress('workloads', { ...rest, by: by === 'owner' ? '' : by, sort: sort === 'idle' ? '' : sort }));
    this.#begin();
  }

  #begin() {
    this.#page = 0;
    this.#controls();
    this.#load();
  }

  async #load() {
    const number = ++this.#number;
    const { by } = this.#asked;
    try {
      const told = await ask(addressOf({ ...this.#asked, limit: PER_PAGE, offset: this.#page * PER_PAGE }));
      if (by === 'owner') await Promise.all(told.groups.filter((group) => this.#open.has(keyOf(group))).map((group) => this.#pods(group)));
      await this.#names();
      if (number !== this.#number) return;
      this.#told = told;
      this.#fault = '';
    } catch (error) {
      if (number !== this.#number) return;
      this.#fault = error.message;
    }
    this.#build();
  }

  /** Load an owner's pods. */
  async #pods(group) {
    const { state, idle, gang, node, q } = this.#asked;
    this.#open.set(keyOf(group), await ask(addressOf({ ...ofOwner(group), state, idle, gang, node, q, limit: MAX_INNER })));
  }

  /** Load the namespaces to choose from, at most once a minute. */
  async #names() {
    if (performance.now() - this.#namespacesAt < NAMESPACES_EVERY_MS) return;
    this.#namespacesAt = performance.now();
    const { groups } = await ask(addressOf({ by: 'namespace', sort: 'name', limit: MAX_NAMESPACES }));
    this.known = groups.map(({ namespace }) => namespace);
    this.#options();
  }

  #options() {
    const { namespace } = this.#asked;
    const names = [...new Set([...(this.known ?? []), ...(namespace ? [namespace] : [])])];
    const option = (value, text) => el('option', { value, selected: value === namespace }, text);
    this.namespaces.replaceChildren(option('', 'all namespaces'), ...names.map((name) => option(name, name)));
    this.namespaces.value = namespace;
  }

  /** Update the controls to the query. */
  #controls() {
    const { by, owner, gang, node, q } = this.#asked;
    fill(this.views, ...Object.entries(VIEWS).map(([name, title]) => pressed(title, name === by, () => this.#ask({ by: name }))));
    if (document.activeElement !== this.find) this.find.value = q;
    this.#options();
    const without = (name, value) => value && el('button', { class: 'chip', type: 'button', 'aria-label': `Without ${name} ${value}`, click: () => this.#ask({ [name]: '' }) }, `${name} ${value} ✕`);
    fill(this.chosen, without('owner', owner), without('gang', gang), without('node', node));
    this.chosen.hidden = !(owner || gang || node);
    this.#chips();
  }

  /** The states, with how many pods are in each. */
  #chips() {
    const { state, idle } = this.#asked;
    const counts = this.#told?.states ?? {};
    const all = STATES.reduce((sum, name) => sum + (counts[name] ?? 0), 0);
    const shown = STATES.filter((name) => counts[name] || name === state || name === 'running' || name === 'pending');
    const chip = (title, count, on, change) => pressed(`${title} ${figure(count ?? 0)}`, on, () => this.#ask(change), title);
    fill(
      this.states,
      chip('all', all, !state && !idle, { state: '', idle: '' }),
      chip('idle', counts.idle, Boolean(idle), { state: '', idle: idle ? '' : 'true' }),
      ...shown.map((name) => chip(name, counts[name], state === name, { state: state === name ? '' : name, idle: '' })),
    );
  }

  #build() {
    const told = this.#told;
    const fault = this.#fault || this.#unknown;
    if (fault) this.count.textContent = fault;
    this.count.className = fault ? 'count fault' : 'count';
    if (!told) return;
    this.#chips();
    if (!fault) this.count.textContent = summary(told);
    const rows = told.by === 'pod' ? told.pods.map((pod) => podRow(pod, told)) : told.groups.flatMap((group) => this.#group(group, told));
    const pages = Math.max(1, Math.ceil(told.total / PER_PAGE));
    fill(
      this.root,
      rows.length
        ? el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Workloads, scrollable' },
            el('table', { class: 'stacks' },
              el('caption', { class: 'unseen' }, 'Workloads, and how they use their GPUs'),
              el('thead', {}, el('tr', {}, columnsOf(told.by).map((column) => this.#heading(column)))),
              el('tbody', {}, rows)))
        : el('p', { class: 'hint' }, told.total ? 'No more rows.' : 'No matching pod has or requests GPUs.'),
      pages > 1 && el('div', { class: 'pager' },
        el('span', {}, `${plural(told.total, told.by)}, page ${this.#page + 1} of ${figure(pages)}`),
        this.#turner('Previous', -1, this.#page === 0),
        this.#turner('Next', 1, told.more === 0)),
    );
  }

  /** An owner and, if it is open, its pods; or a namespace. */
  #group(group, told) {
    if (told.by === 'namespace') return [groupRow(group, told)];
    const key = keyOf(group);
    const open = this.#open.get(key);
    const flip = () => (this.#open.has(key) ? this.#shut(key) : this.#unfold(group));
    const toggle = el('button', {
      class: 'plain toggle', type: 'button', 'aria-expanded': String(Boolean(open)),
      'aria-label': `List pods of ${group.owner} in ${group.namespace}`, click: flip,
    }, open ? '▾' : '▸');
    const rows = [groupRow(group, told, toggle)];
    if (open) rows.push(...open.pods.map((pod) => podRow(pod, told, true)));
    if (open?.more) rows.push(moreRow(group, open.more, columnsOf(told.by).length));
    return rows;
  }

  #shut(key) {
    this.#open.delete(key);
    this.#build();
  }

  async #unfold(group) {
    const open = [...this.#open.keys()];
    if (open.length >= MAX_OPEN) this.#open.delete(open[0]);
    try {
      await this.#pods(group);
    } catch (error) {
      this.#fault = error.message;
    }
    this.#build();
  }

  #heading({ name, sort, rises = false }) {
    if (!sort) return el('th', { scope: 'col' }, name);
    const on = sort === this.#asked.sort;
    const up = rises !== Boolean(this.#asked.reverse);
    const flip = () => this.#ask({ sort, reverse: on && !this.#asked.reverse ? 'true' : '' });
    const sign = on ? el('span', { 'aria-hidden': 'true' }, up ? ' ↑' : ' ↓') : '';
    return el('th', { scope: 'col', 'aria-sort': on ? (up ? 'ascending' : 'descending') : null }, el('button', { class: 'plain', 'data-key': `sort ${name}`, click: flip }, name, sign));
  }

  #turner(name, by, disabled) {
    const turn = () => {
      this.#page += by;
      this.#load();
    };
    return el('button', { class: 'quiet', type: 'button', 'data-key': name, disabled, click: turn }, name);
  }
}

/** An address's query without invalid values, which `unknown` reports. */
function wanted(query) {
  const one = (name) => (CHOICES[name].includes(query.get(name)) ? query.get(name) : '');
  return {
    ...Object.fromEntries(TEXTS.map((name) => [name, (query.get(name) ?? '').slice(0, 63)])),
    ...{ owner: (query.get('owner') ?? '').slice(0, 128), gang: (query.get('gang') ?? '').slice(0, 128), node: (query.get('node') ?? '').slice(0, 253) },
    by: one('by') || 'owner',
    state: one('state'),
    idle: one('idle'),
    sort: one('sort') || 'idle',
    reverse: one('reverse'),
  };
}

/** What is wrong with an address, in a sentence; "" if nothing is. */
function unknown(query) {
  const name = Object.keys(CHOICES).find((one) => query.get(one) && !CHOICES[one].includes(query.get(one)));
  return name ? `${name}: "${query.get(name).slice(0, 63)}" is not one of ${CHOICES[name].join(', ')}; it is ignored` : '';
}

const columnsOf = (by) => COLUMNS.filter(({ name }) => by === 'pod' || name !== 'Node');

const keyOf = ({ namespace, owner }) => `${namespace}/${owner}`;

const addressOf = (query) => `workloads?${new URLSearchParams(Object.entries(query).filter(([, value]) => value))}`;

const pressed = (text, on, click, key = text) => el('button', { type: 'button', class: 'chip', 'aria-pressed': String(on), 'data-key': key, click }, text);

/** "60 pods, 84 GPUs booked; 2 with 8 GPUs idle for 30 min or more" */
function summary({ totals, idleAfterSeconds, atLeast }) {
  const asked = totals.gpusAsked ? `, ${figure(totals.gpusAsked)} requested` : '';
  const idle = totals.idlePods ? `; ${figure(totals.idlePods)} with ${plural(totals.idleGpus, 'GPU')} idle for ${age(idleAfterSeconds)} or more` : '';
  return `${atLeast ? 'at least ' : ''}${plural(totals.pods, 'pod')}, ${plural(totals.gpusBooked, 'GPU')} booked${asked}${idle}`;
}
