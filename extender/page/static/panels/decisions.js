// Kerf's decisions, newest first.

import { clock, el, fill, link } from '../dom.js';

const MAX_SHOWN = 40;

export default {
  id: 'decisions',
  title: 'Decisions',
  column: 'narrow',
  build({ head, body, store }) {
    head.append(el('span', { class: 'count' }, 'newest first'));
    store.addEventListener('decisions', () => showDecisions(store.decisions, body));
  },
};

function showDecisions(decisions, body) {
  if (!decisions.length) {
    fill(body, el('p', { class: 'hint' }, 'None yet. Decisions appear here as they are made.'));
    return;
  }
  const items = decisions.slice(0, MAX_SHOWN).map((one) => {
    const gpus = one.gpus.length ? ` GPU ${one.gpus.join(', ')}` : '';
    const where = one.node ? ['→ ', link('node', one.node), gpus] : [one.why || 'fits on no node'];
    return el(
      'li',
      { class: one.node ? 'placed' : 'rejected' },
      el('time', {}, clock(one.at)),
      el('span', { class: 'unseen' }, one.node ? 'placed' : 'rejected'),
      el('strong', {}, link('pod', one.pod)),
      el('span', { class: 'asked' }, `${one.request}, ${one.policy}`),
      el('span', { class: 'outcome' }, ...where),
    );
  });
  fill(body, el('ol', { class: 'feed scroll', tabindex: 0, 'aria-label': 'Decisions, newest first' }, items));
}
