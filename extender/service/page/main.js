// Everything put together.

import { byId } from './dom.js';
import { Drawer } from './drawer.js';
import { explainNode, explainPod } from './explain.js';
import { showLists } from './lists.js';
import { ClusterMap } from './map.js';
import { NodeTable } from './nodes.js';
import { Store } from './store.js';
import { showTrial } from './trial.js';

const store = new Store();
const drawer = new Drawer();
const map = new ClusterMap(store, byId('map'), byId('map-told'), (node) => (location.hash = `node/${encodeURI(node)}`));
const nodes = new NodeTable(store, byId('panel-table'));

const TABS = [
  [byId('tab-map'), byId('panel-map'), map],
  [byId('tab-table'), byId('panel-table'), nodes],
];

function choose(chosen) {
  for (const [tab, panel, view] of TABS) {
    tab.setAttribute('aria-selected', String(tab === chosen));
    tab.tabIndex = tab === chosen ? 0 : -1;
    panel.hidden = tab !== chosen;
    if (tab === chosen) view.build();
  }
}

for (const [index, [tab]] of TABS.entries()) {
  tab.addEventListener('click', () => choose(tab));
  tab.addEventListener('keydown', (event) => {
    if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
    const other = TABS[1 - index][0];
    choose(other);
    other.focus();
  });
}

byId('find').addEventListener('input', (event) => {
  map.filter(event.target.value);
  nodes.filter(event.target.value);
});

byId('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  const pod = new FormData(event.target).get('pod').trim();
  location.hash = `pod/${encodeURI(pod.includes('/') ? pod : `default/${pod}`)}`;
});

/** Open what the address names: #pod/NAMESPACE/NAME or #node/NAME. */
function follow() {
  const [, kind, name] = /^#(pod|node)\/(.+)$/.exec(decodeURI(location.hash)) ?? [];
  if (kind) drawer.show(name, () => (kind === 'pod' ? explainPod(name) : explainNode(name)));
}

addEventListener('hashchange', follow);
showLists(store);
showTrial();
store.follow('live');
follow();
