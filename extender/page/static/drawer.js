// The side drawer for a pod or node, which the address names, so that it can be linked to.

import { named, say } from './address.js';
import { byId, el } from './dom.js';

export class Drawer {
  #number = 0;
  #load = null;
  #before = ''; // the address to restore on closing

  constructor() {
    this.root = byId('drawer');
    this.title = byId('drawer-title');
    this.body = byId('drawer-body');
    byId('drawer-close').addEventListener('click', () => this.root.close());
    byId('drawer-refresh').addEventListener('click', () => this.#fill());
    this.root.addEventListener('click', (event) => event.target === this.root && this.root.close());
    this.root.addEventListener('close', () => named(location.hash).drawer && say(this.#before));
  }

  /** Open with a title; `load` promises the content, and is called again on Refresh. `before` is the address to restore. */
  show(title, load, before) {
    this.title.textContent = title;
    this.#load = load;
    if (!this.root.open) this.#before = before;
    this.body.replaceChildren(el('p', { class: 'hint' }, 'loading'));
    if (!this.root.open) this.root.showModal();
    this.title.focus();
    this.#fill();
  }

  /** Close it, if it is open: the address names something else now. */
  hide() {
    if (this.root.open) this.root.close();
  }

  async #fill() {
    const number = ++this.#number;
    let told;
    try {
      told = await this.#load();
    } catch (error) {
      told = [el('p', { class: error.status === 404 ? 'hint' : 'fault' }, error.message)]; // an unknown name is no fault
    }
    if (number === this.#number) this.body.replaceChildren(...told.filter(Boolean));
  }
}
