// The cluster as received from the event stream. Listeners are called once per frame, however many events arrive.

import { plural } from './dom.js';

const MAX_DECISIONS = 100;
const LOOK_MS = 1000;
const SILENT_MS = 12_000; // Kerf sends an event every 5 s
const DEAD_MS = 30_000; // after this time the page reconnects

export const MARK = { error: 1, fragment: 2, stale: 4, unmanaged: 8, unindexed: 16, reserved: 32, mig: 64 };

export class Store extends EventTarget {
  nodes = new Map(); // by row
  sections = {}; // the server's data for each panel, by name
  decisions = []; // newest first
  connected = false;
  heard = 0; // time of the last event: Unix time in ms, 0 for never
  #silent = false;
  #source = null;
  #changed = new Map(); // kind to the rows or keys that changed
  #asked = false;
  #loading = false; // until the first tick, so that no incomplete cluster is laid out

  /** Whether the connection to Kerf is lost, so that the data is stale. */
  get lost() {
    return !this.connected || this.#silent;
  }

  /** Follow the stream; the browser reconnects by itself, with the ID of its last event. */
  follow(url) {
    if (!this.#source) setInterval(() => this.#look(url), LOOK_MS);
    const source = (this.#source = new EventSource(url));
    const on = (kind, take) =>
      source.addEventListener(kind, (event) => {
        this.#hear();
        take(JSON.parse(event.data));
      });
    on('still', () => {});
    source.addEventListener('open', () => {
      this.#hear();
      this.#connect(true);
    });
    source.addEventListener('error', () => {
      this.#connect(false);
      if (source.readyState === EventSource.CLOSED && source === this.#source) setTimeout(() => this.follow(url), 5000);
    });
    on('begin', () => {
      this.nodes.clear();
      this.decisions = [];
      this.#loading = true;
    });
    on('nodes', (nodes) => nodes.forEach((node) => this.#take(node)));
    on('tick', (told) => {
      if (this.#loading) {
        this.#loading = false;
        this.#note('shape', 0);
        this.#note('decisions', 0);
      }
      const { decisions, ...sections } = told;
      for (const name in sections) {
        this.sections[name] = sections[name];
        this.#note(name, 0);
      }
      if (decisions) {
        this.decisions = [...decisions.reverse(), ...this.decisions].slice(0, MAX_DECISIONS);
        this.#note('decisions', 0);
      }
    });
  }

  #hear() {
    this.heard = Date.now();
    if (this.#silent) this.#note('status', 0);
    this.#silent = false;
  }

  /** Reconnect if the connection is dead, which the browser may not notice. */
  #look(url) {
    const silentMs = Date.now() - this.heard;
    if (!this.connected || silentMs < SILENT_MS) return;
    this.#silent = true;
    this.#note('status', 0);
    if (silentMs < DEAD_MS) return;
    this.#source.close();
    this.#connect(false);
    this.follow(url);
  }

  #connect(connected) {
    this.connected = connected;
    this.#note('status', 0);
  }

  #take(node) {
    const known = this.nodes.get(node.row);
    if (node.node) this.nodes.set(node.row, describe(node));
    else this.nodes.delete(node.row);
    const same = known && known.node === node.node && known.group === this.nodes.get(node.row).group;
    if (same && !this.#loading && known.cells.length === this.nodes.get(node.row).cells.length) this.#note('nodes', node.row);
    else if ((known || node.node) && !this.#loading) this.#note('shape', node.row);
  }

  #note(kind, what) {
    if (!this.#changed.has(kind)) this.#changed.set(kind, new Set());
    this.#changed.get(kind).add(what);
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      const changed = this.#changed;
      this.#changed = new Map();
      for (const [name, rows] of changed) this.dispatchEvent(new CustomEvent(name, { detail: rows }));
    });
  }
}

/** A node with its sums. Each GPU is [booked percent, used percent or -1, marks]; `cells` also has its MIG devices. */
function describe(node) {
  const mig = node.mig ?? [];
  const devices = mig.flatMap(([, installed, free]) => Array.from({ length: installed }, (_, index) => [index < installed - free ? 100 : 0, -1, MARK.mig]));
  const count = (mark) => node.gpus.filter((gpu) => gpu[2] & mark).length;
  const loads = node.gpus.map((gpu) => gpu[1]).filter((load) => load >= 0);
  return {
    ...node,
    cells: [...node.gpus, ...devices],
    profiles: mig.flatMap(([profile, installed]) => Array(installed).fill(profile)),
    migWords: mig.map(([profile, installed, free]) => `${free} of ${installed} MIG ${profile} free`).join(', '),
    group: node.gpus.length ? `${node.model || 'unknown model'}|${node.memoryMiB}` : devices.length ? 'MIG|' : '',
    booked: Math.max(node.gpus.reduce((sum, gpu) => sum + gpu[0], 0) / 100 - (node.gpusReserved ?? 0), 0),
    load: loads.length ? loads.reduce((sum, load) => sum + load, 0) / loads.length : null,
    fragments: count(MARK.fragment),
    errors: count(MARK.error),
    unmanaged: count(MARK.unmanaged),
    reserved: count(MARK.reserved),
  };
}

/** A node in words, for the map and screen readers. */
export function words(node) {
  if (!node.cells.length) return `${node.node}: no GPUs${node.free ? `; devices free: ${node.free}` : ''}`;
  const parts = node.gpus.length ? [`${+node.booked.toFixed(2)} of ${node.gpus.length} GPUs booked`] : [];
  if (node.slices) parts.push(`${node.slices} time slices each`);
  if (node.migWords) parts.push(node.migWords);
  if (node.load != null) parts.push(`load ${Math.round(node.load)} %`);
  if (node.fragments) parts.push(`${node.fragments} free on a node in use`);
  if (node.reserved) parts.push(`${node.reserved} reserved`);
  if (node.unmanaged) parts.push(`${node.unmanaged} used without a booking`);
  if (node.errors) parts.push(`${node.errors} with an error`);
  if (node.free) parts.push(`devices free: ${node.free}`);
  if (node.faults) parts.push(`${plural(node.faults, 'pool')} of devices with a fault`);
  if (node.samples === 'STALE') parts.push('stale metrics');
  if (node.setAside) parts.push('quarantined');
  return `${node.node}: ${parts.join(', ')}`;
}
