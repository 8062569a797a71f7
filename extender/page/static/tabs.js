// Tabs with their panels, navigated by arrow keys.

import { el } from './dom.js';

/** A tab, and its panel with the content. */
export function tab(name, title, ...children) {
  const button = el('button', { role: 'tab', id: `tab-${name}`, 'aria-controls': `panel-${name}` }, title);
  const panel = el('div', { role: 'tabpanel', id: `panel-${name}`, 'aria-labelledby': `tab-${name}` }, children);
  return { button, panel };
}

/** The tab list, the first tab selected. `chosen` is called with each tab that is selected. */
export function tabList(label, tabs, chosen) {
  function choose(wanted) {
    for (const { button, panel } of tabs) {
      button.setAttribute('aria-selected', String(button === wanted.button));
      button.tabIndex = button === wanted.button ? 0 : -1;
      panel.hidden = button !== wanted.button;
    }
    chosen(wanted);
  }

  for (const [index, one] of tabs.entries()) {
    one.button.addEventListener('click', () => choose(one));
    one.button.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const other = tabs.at((index + step) % tabs.length);
      choose(other);
      other.button.focus();
    });
  }
  choose(tabs[0]);
  return el('div', { role: 'tablist', 'aria-label': label, class: 'tabs' }, tabs.map(({ button }) => button));
}
