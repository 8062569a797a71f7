// The nodes as a table with the map's data, fifty per page.

import { el, fill, link, memory, plural } from './dom.js';

const PER_PAGE = 50;
const byName = new Intl.Collator('en', { numeric: true });
const COLUMNS = [
  { name: 'Node', of: (node) => node.node, shown: (node) => link('node', node.node) },
  { name: 'Model', of: (node) => node.model, shown: (node) => (node.gpus.length ? `${node.model || 'unknown'}${node.memoryMiB ? `, ${memory(node.memoryMiB)}` : ''}` : node.cells.length ? 'MIG devices' : 'no GPUs') },
  { name: 'GPUs', of: (node) => node.gpus.length },
  { name: 'Booked', of: (node) => node.booked, shown: (node) => String(+node.booked.toFixed(2)) },
  { name: 'Load', of: (node) => node.load ?? -1, shown: (node) => (node.load == null ? '-' : `${Math.round(node.load)} %`) },
  { name: 'Free on used nodes', of: (node) => node.fragments },
  { name: 'Notes', of: (node) => notes(node), shown: (node) => notes(node) || '-' },
];

export class NodeTable {
  #page = 0;
  #sorted = 0;
  #descending = false;
  #text = '';

  constructor(store, root) {
    this.store = store;
    this.root = root;
    for (const kind of ['shape', 'nodes']) store.addEventListener(kind, () => this.build());
  }

  /** Show only nodes whose name or model contains the text. */
  filter(text) {
    this.#text = text.trim().toLowerCase();
    this.#page = 0;
    this.build();
  }

  /** Rebuild the table, if it is shown. */
  build() {
    if (this.root.hidden) return;
    const found = [...this.store.nodes.values()].filter((node) => `${node.node} ${node.model}`.toLowerCase().includes(this.#text));
    const { of } = COLUMNS[this.#sorted];
    const sign = this.#descending ? -1 : 1;
    found.sort((one, other) => sign * compare(of(one), of(other)) || byName.compare(one.node, other.node));
    const pages = Math.max(1, Math.ceil(found.length / PER_PAGE));
    this.#page = Math.min(this.#page, pages - 1);
    const shown = found.slice(this.#page * PER_PAGE, (this.#page + 1) * PER_PAGE);
    fill(
      this.root,
      el(
        'div',
        { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Nodes' },
        el(
          'table',
          {},
          el('caption', { class: 'unseen' }, 'Nodes, with bookings and load of their GPUs'),
          el('thead', {}, el('tr', {}, COLUMNS.map((column, index) => this.#heading(column, index)))),
          el('tbody', {}, shown.map(row)),
        ),
      ),
      el(
        'div',
        { class: 'pager' },
        el('span', {}, `${plural(found.length, 'node')}, page ${this.#page + 1} of ${pages}`),
        this.#turner('Previous', -1, this.#page === 0),
        this.#turner('Next', 1, this.#page === pages - 1),
      ),
    );
  }

  #heading({ name }, index) {
    const sort = () => {
      this.#descending = this.#sorted === index && !this.#descending;
      this.#sorted = index;
      this.build();
    };
    const order = index !== this.#sorted ? null : this.#descending ? 'descending' : 'ascending';
    const sign = order ? el('span', { 'aria-hidden': 'true' }, this.#descending ? ' ↓' : ' ↑') : '';
    return el('th', { scope: 'col', 'aria-sort': order }, el('button', { class: 'plain', 'data-key': name, click: sort }, name, sign));
  }

  #turner(name, by, disabled) {
    const turn = () => {
      this.#page += by;
      this.build();
    };
    return el('button', { class: 'quiet', type: 'button', 'data-key': name, disabled, click: turn }, name);
  }
}

const compare = (one, other) => (typeof one === 'number' ? one - other : byName.compare(one, other));

const row = (node) =>
  el('tr', {}, COLUMNS.map(({ of, shown = (node) => String(of(node)) }, index) => el(index ? 'td' : 'th', index ? {} : { scope: 'row' }, shown(node))));

function notes(node) {
  const said = [];
  if (node.errors) said.push(`${plural(node.errors, 'GPU')} with an error`);
  if (node.unmanaged) said.push(`${node.unmanaged} used without a booking`);
  if (node.samples === 'STALE') said.push('stale metrics');
  if (node.setAside) said.push('quarantined');
  if (node.slices) said.push(`${node.slices} time slices per GPU`);
  if (node.migWords) said.push(node.migWords);
  if (node.reserved) said.push(`${plural(node.reserved, 'GPU')} reserved`);
  if (node.free) said.push(`devices free: ${node.free}`);
  if (node.faults) said.push(`${plural(node.faults, 'pool')} with a fault`);
  return said.join(', ');
}
