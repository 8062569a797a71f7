// The whole page: the header, a card for each panel, and the drawer that the address opens.

import { named } from './address.js';
import { byId, el } from './dom.js';
import { Drawer } from './drawer.js';
import { explainNode, explainPod } from './explain.js';
import { showHeader } from './header.js';
import { PANELS } from './panels/index.js';
import { makeRoom } from './room.js';
import { addSearch } from './search.js';
import { Store } from './store.js';

const store = new Store();
const drawer = new Drawer();
const views = new Map(); // by panel id: the function that shows an address's query, if any

for (const { id, title, column, build } of PANELS) {
  const head = el('div', { class: 'head' }, el('h2', { id: `${id}-title` }, title));
  const body = el('div');
  byId(column).append(el('section', { class: 'card', id, 'aria-labelledby': `${id}-title`, tabindex: -1 }, head, body));
  views.set(id, build({ head, body, store }));
}

const SETTLE_MS = 5000;
const SHOWN = { pod: explainPod, node: explainNode, room: makeRoom };

/** Open what the address names: the drawer, or a panel with a query. */
function follow(before) {
  const { drawer: kind, name, panel, query } = named(location.hash);
  if (kind) {
    drawer.show(kind === 'room' ? `Make room for ${name}` : name, () => SHOWN[kind](name), before);
    return;
  }
  drawer.hide();
  if (!views.has(panel)) return;
  views.get(panel)?.(query);
  byId(panel).focus({ preventScroll: true });
  byId(panel).scrollIntoView();
}

/** Keep scrolling to the addressed panel while panels get their first heights, until the user acts. */
function settle() {
  const { panel } = named(location.hash);
  if (!views.has(panel)) return;
  const growing = new ResizeObserver(() => byId(panel).scrollIntoView());
  growing.observe(document.body);
  setTimeout(() => growing.disconnect(), SETTLE_MS);
  for (const kind of ['wheel', 'pointerdown', 'keydown', 'hashchange']) addEventListener(kind, () => growing.disconnect(), { once: true });
}

addEventListener('hashchange', (event) => follow(new URL(event.oldURL).hash));
showHeader(store);
addSearch(store);
store.follow('live');
follow('');
settle();
