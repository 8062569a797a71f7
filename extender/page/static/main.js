// Everything put together: the header, a card for each panel, and the drawer that the address opens.

import { byId, el } from './dom.js';
import { Drawer } from './drawer.js';
import { explainNode, explainPod } from './explain.js';
import { showHeader } from './header.js';
import { PANELS } from './panels/index.js';
import { makeRoom } from './room.js';
import { Store } from './store.js';

const store = new Store();
const drawer = new Drawer();

for (const { id, title, column, build } of PANELS) {
  const head = el('div', { class: 'head' }, el('h2', { id: `${id}-title` }, title));
  const body = el('div');
  byId(column).append(el('section', { class: 'card', id, 'aria-labelledby': `${id}-title`, tabindex: -1 }, head, body));
  build({ head, body, store });
}

const SHOWN = { pod: explainPod, node: explainNode, room: makeRoom };

/** Open what the address names: #pod/NAMESPACE/NAME, #room/NAMESPACE/NAME or #node/NAME; or a panel, as #waiting. */
function follow() {
  followPanel();
  const [, kind, name] = /^#(pod|node|room)\/(.+)$/.exec(decodeURI(location.hash)) ?? [];
  if (kind) drawer.show(kind === 'room' ? `Make room for ${name}` : name, () => SHOWN[kind](name));
}

/** Go to the panel that the address names; what follows a question mark is the panel's own: #usage?since=7d. */
function followPanel() {
  const [, id] = /^#([a-z-]+)(?:\?.*)?$/.exec(location.hash) ?? [];
  if (PANELS.some((panel) => panel.id === id)) byId(id).focus();
}

addEventListener('hashchange', follow);
store.addEventListener('shape', followPanel, { once: true }); // what is above it has its height by now
showHeader(store);
store.follow('live');
follow();
