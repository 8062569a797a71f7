// The cluster map: one canvas for each kind of GPU, navigated by pointer or keyboard.

import { ask, el, figure, memory, plural } from './dom.js';
import { wordsOfDevices } from './explain.js';
import { MARK, words } from './store.js';
import { at, colours, cornerOf, drawTile, layout } from './tiles.js';

const byName = new Intl.Collator('en', { numeric: true });

/** GPU nodes by kind of GPU, both sorted; only those whose name or model contains the text. */
export function grouped(nodes, text) {
  const groups = new Map();
  for (const node of nodes) {
    if (!node.group || !`${node.node} ${node.model}`.toLowerCase().includes(text)) continue;
    if (!groups.has(node.group)) groups.set(node.group, { model: node.model, memoryMiB: node.memoryMiB, nodes: [] });
    groups.get(node.group).nodes.push(node);
  }
  const made = [...groups.values()];
  for (const group of made) group.nodes.sort((one, other) => byName.compare(one.node, other.node));
  return made.sort((one, other) => other.memoryMiB - one.memoryMiB || byName.compare(one.model, other.model));
}

export class ClusterMap {
  #groups = [];
  #placeOf = new Map(); // row to [group, index]
  #chosen = -1; // row
  #width = 0;
  #colour = colours();
  #hovered = [null, -1]; // node and GPU
  #asked = { name: '', at: 0, told: null }; // the node under the pointer

  /** `root` holds the canvases, `told` the selected node in words; `open` is called with a node's name. */
  constructor(store, root, told, open) {
    this.store = store;
    this.root = root;
    this.told = told;
    this.open = open;
    this.text = '';
    this.ring = el('div', { class: 'ring', hidden: true });
    this.tip = el('div', { class: 'tip', hidden: true, 'aria-hidden': 'true' });
    store.addEventListener('shape', () => this.build());
    store.addEventListener('nodes', (event) => this.#redraw(event.detail));
    root.addEventListener('keydown', (event) => this.#key(event));
    root.addEventListener('pointermove', (event) => this.#hover(event));
    root.addEventListener('pointerleave', () => (this.tip.hidden = true));
    root.addEventListener('click', (event) => this.#click(event));
    root.addEventListener('focus', () => this.#choose(this.#placeOf.has(this.#chosen) ? this.#chosen : this.#rowAt(0, 0)));
    root.addEventListener('blur', () => (this.ring.hidden = true));
    new ResizeObserver(() => root.clientWidth !== this.#width && this.build()).observe(root);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.build());
  }

  /** Show only nodes whose name or model contains the text. */
  filter(text) {
    this.text = text.trim().toLowerCase();
    this.build();
  }

  /** Lay out and draw all nodes. */
  build() {
    this.#width = this.root.clientWidth;
    if (!this.#width) return; // hidden
    this.#colour = colours();
    this.#groups = layout(grouped(this.store.nodes.values(), this.text), this.#width, Math.max(420, innerHeight * 0.72));
    this.#placeOf.clear();
    const sections = this.#groups.map((group, number) => {
      group.nodes.forEach((node, index) => this.#placeOf.set(node.row, [number, index]));
      group.heading = el('span', {});
      group.canvas = el('canvas', { 'aria-hidden': 'true' });
      this.#draw(group);
      this.#head(group);
      return el('div', { class: 'group' }, el('h3', {}, group.model || (group.nodes[0].gpus.length ? 'unknown model' : 'MIG devices'), group.heading), group.canvas);
    });
    const none = el('p', { class: 'hint' }, this.text ? 'No node matches.' : 'No GPU nodes.');
    this.root.replaceChildren(...(sections.length ? sections : [none]), this.ring, this.tip);
    if (this.#placeOf.has(this.#chosen)) this.#place();
    else this.ring.hidden = true;
    if (sections.length) performance.mark('map');
  }

  #draw(group) {
    const scale = Math.min(devicePixelRatio || 1, 3);
    group.canvas.width = this.#width * scale;
    group.canvas.height = group.height * scale;
    group.canvas.style.height = `${group.height}px`;
    group.context = group.canvas.getContext('2d', { alpha: false });
    group.context.scale(scale, scale);
    group.context.fillStyle = this.#colour.card;
    group.context.fillRect(0, 0, this.#width, group.height);
    group.nodes.forEach((_, index) => drawTile(group.context, group, index, this.#colour));
  }

  #head(group) {
    const gpus = group.nodes.reduce((sum, node) => sum + node.gpus.length, 0);
    const booked = group.nodes.reduce((sum, node) => sum + node.booked, 0);
    const size = group.memoryMiB ? `${memory(group.memoryMiB)}, ` : '';
    const devices = group.nodes.flatMap((node) => node.cells.slice(node.gpus.length));
    const told = [plural(group.nodes.length, 'node')];
    if (gpus) told.push(`${figure(booked, 1)} of ${plural(gpus, 'GPU')} booked`);
    const reserved = group.nodes.reduce((sum, node) => sum + (node.gpusReserved ?? 0), 0);
    if (reserved) told.push(`${figure(reserved, 1)} reserved`);
    if (devices.length) told.push(`${devices.filter(([full]) => full).length} of ${plural(devices.length, 'MIG device')} booked`);
    group.heading.textContent = ` ${size}${told.join(', ')}`;
  }

  #redraw(rows) {
    const touched = new Set();
    for (const row of rows) {
      const place = this.#placeOf.get(row);
      if (!place) continue;
      const group = this.#groups[place[0]];
      group.nodes[place[1]] = this.store.nodes.get(row);
      drawTile(group.context, group, place[1], this.#colour);
      touched.add(group);
    }
    touched.forEach((group) => this.#head(group));
  }

  #rowAt(group, index) {
    return this.#groups[group]?.nodes[index]?.row ?? -1;
  }

  #choose(row) {
    this.#chosen = row;
    if (row < 0) return;
    this.#place();
    this.#tell();
  }

  #place() {
    const [number, index] = this.#placeOf.get(this.#chosen);
    const group = this.#groups[number];
    const [x, y] = cornerOf(group, index);
    this.ring.hidden = document.activeElement !== this.root;
    this.ring.style.cssText = `left:${group.canvas.offsetLeft + x - 4}px;top:${group.canvas.offsetTop + y - 4}px;width:${group.tileWidth + 8}px;height:${group.tileHeight + 8}px`;
    if (!this.ring.hidden) this.ring.scrollIntoView({ block: 'nearest' });
  }

  #tell() {
    this.told.textContent = words(this.store.nodes.get(this.#chosen));
  }

  #key(event) {
    if (!this.#placeOf.has(this.#chosen)) return;
    const [number, index] = this.#placeOf.get(this.#chosen);
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -2, ArrowDown: 2, Home: -3, End: 3 }[event.key];
    if (event.key === 'Enter' || event.key === ' ') this.open(this.store.nodes.get(this.#chosen).node);
    else if (!move) return;
    else this.#choose(this.#after(number, index, move));
    event.preventDefault();
  }

  /** The row that an arrow key leads to from a tile. */
  #after(number, index, move) {
    const group = this.#groups[number];
    const last = this.#groups.length - 1;
    if (Math.abs(move) === 3) return move < 0 ? this.#rowAt(0, 0) : this.#rowAt(last, this.#groups[last].nodes.length - 1);
    const to = index + (Math.abs(move) === 1 ? move : (move / 2) * group.perRow);
    if (to >= 0 && to < group.nodes.length) return this.#rowAt(number, to);
    const next = this.#groups[number + Math.sign(move)];
    if (!next) return this.#chosen;
    const column = Math.min(index % group.perRow, next.perRow - 1);
    if (move > 0) return this.#rowAt(number + 1, move === 1 ? 0 : Math.min(column, next.nodes.length - 1));
    const lowest = next.nodes.length - 1;
    return this.#rowAt(number - 1, move === -1 ? lowest : Math.min(lowest - (lowest % next.perRow) + column, lowest));
  }

  /** The node and GPU at the pointer. */
  #under(event) {
    const group = this.#groups.find((one) => one.canvas === event.target);
    if (!group) return [null, -1];
    const [index, gpu] = at(group, event.offsetX, event.offsetY);
    return [group.nodes[index] ?? null, gpu];
  }

  #hover(event) {
    const [node, gpu] = this.#under(event);
    this.tip.hidden = !node;
    this.root.style.cursor = node ? 'pointer' : '';
    if (!node) return;
    this.#hovered = [node, gpu];
    this.#tellTip();
    const box = this.root.getBoundingClientRect();
    const left = Math.max(0, Math.min(event.clientX - box.left + 14, this.root.clientWidth - this.tip.offsetWidth));
    this.tip.style.cssText = `left:${left}px;top:${event.clientY - box.top + 18}px`;
  }

  #tellTip() {
    const [node, gpu] = this.#hovered;
    const lines = [el('strong', {}, node.node), el('span', {}, words(node).slice(node.node.length + 2))];
    if (gpu >= 0) lines.push(el('span', {}, wordsOfCell(node, gpu)));
    if (gpu >= 0 && (node.unit === 'CLAIM' || node.unit === 'OWNED')) lines.push(...this.#devices(node.node, gpu).map((line) => el('span', {}, line)));
    this.tip.replaceChildren(...lines);
  }

  /** Devices of a GPU in words, as far as known; loaded for the node under the pointer, then shown. */
  #devices(name, gpu) {
    const known = this.#asked;
    if (known.name !== name || Date.now() - known.at > 3000) {
      const asked = (this.#asked = { name, at: Date.now(), told: known.name === name ? known.told : null });
      const take = (told) => {
        asked.told = told;
        if (this.#hovered[0]?.node === name) this.#tellTip();
      };
      ask(`nodes/${encodeURIComponent(name)}`).then(take, () => null);
    }
    const found = this.#asked.told?.gpuDetails.find((one) => one.index === gpu);
    return found ? wordsOfDevices(found) : [];
  }

  #click(event) {
    const [node] = this.#under(event);
    if (!node) return;
    this.#chosen = node.row;
    this.open(node.node);
  }
}

function wordsOfCell(node, number) {
  const [booked, used, marks] = node.cells[number];
  if (marks & MARK.mig) return `MIG device ${node.profiles[number - node.gpus.length]}: ${booked ? 'booked' : 'free'}`;
  const odd = ['error', 'free on a node in use', 'stale metrics', 'memory in use without a booking', 'held on an unknown GPU of the node', 'reserved'];
  const said = odd.filter((_, bit) => marks & (1 << bit));
  return [`GPU ${number}: ${booked} % booked`, ...(used < 0 ? [] : [`${used} % used`]), ...said].join(', ');
}
