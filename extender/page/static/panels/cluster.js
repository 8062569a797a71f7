// The cluster, as a map or a table, and a field to find nodes.

import { el, fill } from '../dom.js';
import { ClusterMap } from '../map.js';
import { NodeTable } from '../nodes.js';
import { tab, tabList } from '../tabs.js';

// Cell styles, what they mean, and whether a node has them; the legend shows only those in use.
const LEGEND = [
  ['free', 'free', () => true],
  ['fragment', 'free, on a node in use', (node) => node.fragments],
  ['booked', 'booked', () => true],
  ['used', 'booked and used', (node) => node.load != null],
  ['reserved', 'reserved', (node) => node.reserved],
  ['slices', 'time slices', (node) => node.slices],
  ['mig', 'MIG device', (node) => node.profiles.length],
  ['over', 'used beyond its booking', (node) => node.unmanaged],
  ['stale', 'stale metrics', (node) => node.samples === 'STALE'],
  ['error', 'error', (node) => node.errors],
];
const HELP = 'Arrow keys move between nodes, Home and End jump to the first and last, Enter opens a node. The table has the same data.';

export default {
  id: 'cluster',
  title: 'Cluster',
  column: 'wide',
  build({ head, body, store }) {
    const find = el('input', { id: 'find', type: 'search', placeholder: 'Find nodes', autocomplete: 'off', spellcheck: 'false' });
    const canvases = el('div', {
      id: 'map', class: 'map', tabindex: 0, role: 'application',
      'aria-roledescription': 'cluster map', 'aria-label': 'Cluster map', 'aria-describedby': 'map-help',
    });
    const chosen = el('p', { id: 'map-node', class: 'told', 'aria-live': 'polite' });
    const legend = el('ul', { class: 'legend', 'aria-label': 'Legend' });
    const explain = () => {
      const nodes = [...store.nodes.values()];
      const seen = LEGEND.filter(([, , has]) => nodes.some(has));
      fill(legend, seen.map(([name, text]) => el('li', {}, el('span', { class: `key ${name}` }), text)));
    };
    for (const change of ['shape', 'nodes']) store.addEventListener(change, explain);
    const views = [
      tab('map', 'Map', legend, el('p', { id: 'map-help', class: 'unseen' }, HELP), canvases, chosen),
      tab('table', 'Table'),
    ];
    head.append(
      el('label', { class: 'search' }, el('span', { class: 'unseen' }, 'Find nodes by name or model'), find),
    );
    body.append(...views.map((view) => view.panel));
    const open = (node) => (location.hash = `node/${encodeURI(node)}`);
    views[0].shown = new ClusterMap(store, canvases, chosen, open);
    views[1].shown = new NodeTable(store, views[1].panel);
    head.append(tabList('Cluster view', views, ({ shown }) => shown.build()));

    find.addEventListener('input', () => views.forEach(({ shown }) => shown.filter(find.value)));
  },
};
